# NCCL as Nccl::nccl: the wheel beside LibTorch first (two NCCLs in one process are trouble), then the system's.

get_filename_component(_site "${LibTorch_INCLUDE_DIR}/../.." ABSOLUTE)
find_path(Nccl_INCLUDE_DIR nccl.h HINTS "${_site}/nvidia/nccl/include" ${CUDAToolkit_INCLUDE_DIRS})
find_library(Nccl_LIBRARY NAMES nccl libnccl.so.2 HINTS "${_site}/nvidia/nccl/lib" ${CUDAToolkit_LIBRARY_DIR})

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nccl REQUIRED_VARS Nccl_LIBRARY Nccl_INCLUDE_DIR)
if(Nccl_FOUND AND NOT TARGET Nccl::nccl)
  add_library(Nccl::nccl SHARED IMPORTED)
  set_target_properties(Nccl::nccl PROPERTIES IMPORTED_LOCATION ${Nccl_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Nccl_INCLUDE_DIR})
endif()
mark_as_advanced(Nccl_INCLUDE_DIR Nccl_LIBRARY)
