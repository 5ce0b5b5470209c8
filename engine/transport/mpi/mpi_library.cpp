#include "engine/transport/mpi/mpi_library.h"

#include "engine/transport/mpi/linked_mpi.h"

// An object of its own, and nothing else in it: a program that defines mpi_library() leaves it out, and with it MPI.
namespace stagecraft {

const MpiLibrary& mpi_library() { return linked_mpi(); }

}  // namespace stagecraft
