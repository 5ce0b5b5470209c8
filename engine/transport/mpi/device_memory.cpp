#include "engine/transport/mpi/device_memory.h"

#include <mpi.h>

// An extension, of Open MPI's: others are taken to know the hosts' memory alone.
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace stagecraft::transport {

bool mpi_built_for_cuda() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_CUDA_AWARE_SUPPORT != 0;
#else
  return false;
#endif
}

bool mpi_takes_device_memory() {
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

}  // namespace stagecraft::transport
