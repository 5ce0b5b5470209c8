// `_mpi.so`: the engine's transport over MPI, linked with MPI (loaded_mpi.cpp).

#include "engine/transport/mpi/linked_mpi.h"

extern "C" __attribute__((visibility("default"))) const stagecraft::MpiLibrary* stagecraft_mpi_library() {
  return &stagecraft::linked_mpi();
}

/// Of the headers that both sides were compiled with.
extern "C" __attribute__((visibility("default"))) const char* stagecraft_mpi_interface() {
  return STAGECRAFT_MPI_INTERFACE;
}
