#pragma once

// Whether MPI takes pointers into a GPU's memory ("CUDA-aware").

namespace stagecraft::transport {

/// Whether the MPI that this program was compiled against was built for it. All that is known before MPI has
/// started.
[[nodiscard]] bool mpi_built_for_cuda();

/// What the MPI that runs says itself. MPI has started; it is asked before it has ended.
[[nodiscard]] bool mpi_takes_device_memory();

}  // namespace stagecraft::transport
