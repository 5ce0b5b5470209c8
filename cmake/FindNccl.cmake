# NCCL as Nccl::nccl: the wheel beside LibTorch first (two NCCLs in one process are trouble), then the system's.

get_filename_component(_site "${LibTorch_INCLUDE_DIR}/../.." ABSOLUTE)
# Header and library of one place: the wheel has no libnccl.so, so a search by name alone would find the system's.
find_path(Nccl_INCLUDE_DIR nccl.h PATHS "${_site}/nvidia/nccl/include" NO_DEFAULT_PATH)
find_library(Nccl_LIBRARY NAMES libnccl.so.2 PATHS "${_site}/nvidia/nccl/lib" NO_DEFAULT_PATH)
if(NOT Nccl_INCLUDE_DIR OR NOT Nccl_LIBRARY)
  unset(Nccl_INCLUDE_DIR CACHE)
  unset(Nccl_LIBRARY CACHE)
  find_path(Nccl_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(Nccl_LIBRARY NAMES libnccl.so.2 nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nccl REQUIRED_VARS Nccl_LIBRARY Nccl_INCLUDE_DIR)
if(Nccl_FOUND AND NOT TARGET Nccl::nccl)
  add_library(Nccl::nccl SHARED IMPORTED)
  set_target_properties(Nccl::nccl PROPERTIES IMPORTED_LOCATION ${Nccl_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Nccl_INCLUDE_DIR})
endif()
mark_as_advanced(Nccl_INCLUDE_DIR Nccl_LIBRARY)
