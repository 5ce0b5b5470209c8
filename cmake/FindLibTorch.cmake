# LibTorch as imported targets, without LibTorch's own CMake package: that one wants nvcc and drags CUDA into every link.
#   LibTorch::cpu     c10 and torch_cpu
#   LibTorch::openmp  the OpenMP runtime that LibTorch uses, for sources with at::parallel_for
# It is STAGECRAFT_LIBTORCH (a torch folder with include/ and lib/), by -D or from the environment, where a new value is noticed, or
# else STAGECRAFT_LIBTORCH_DEFAULT. LibTorch_VERSION is its version, of a minor in STAGECRAFT_TORCH_MINORS. Installed with the
# library: users' projects find LibTorch with the same file.

set(STAGECRAFT_LIBTORCH "$ENV{STAGECRAFT_LIBTORCH}" CACHE PATH "LibTorch: a folder with include/ and lib/")
set(_exported "$ENV{STAGECRAFT_LIBTORCH}")
if(_exported AND DEFINED STAGECRAFT_LIBTORCH_EXPORTED AND NOT _exported STREQUAL STAGECRAFT_LIBTORCH_EXPORTED)
  set_property(CACHE STAGECRAFT_LIBTORCH PROPERTY VALUE "${_exported}")
endif()
set(STAGECRAFT_LIBTORCH_EXPORTED "${_exported}" CACHE INTERNAL "its value at the last configure")

set(_torch "${STAGECRAFT_LIBTORCH}")
if(NOT _torch)
  set(_torch "${STAGECRAFT_LIBTORCH_DEFAULT}")
endif()

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h PATHS ${_torch} PATH_SUFFIXES include NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10 c10 PATHS ${_torch} PATH_SUFFIXES lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CPU torch_cpu PATHS ${_torch} PATH_SUFFIXES lib NO_DEFAULT_PATH NO_CACHE)

set(LibTorch_VERSION "")
if(EXISTS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
  file(STRINGS "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h" _numbers REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  list(TRANSFORM _numbers REPLACE ".* " "")
  list(JOIN _numbers "." LibTorch_VERSION)
endif()
string(REGEX MATCH "^[0-9]+\\.[0-9]+" LibTorch_MINOR "${LibTorch_VERSION}")
if(LibTorch_INCLUDE_DIR AND NOT LibTorch_MINOR IN_LIST STAGECRAFT_TORCH_MINORS)
  list(JOIN STAGECRAFT_TORCH_MINORS " or " _expected)
  message(FATAL_ERROR "${_torch} is LibTorch \"${LibTorch_VERSION}\", expected ${_expected}: point STAGECRAFT_LIBTORCH at one")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU LibTorch_C10 LibTorch_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or point STAGECRAFT_LIBTORCH at a LibTorch, or do without the engine (-DSTAGECRAFT_ENGINE=OFF, component planner)")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  # LibTorch's include folder also holds an fmt of another version than the one we link; expose only LibTorch's own headers.
  set(_headers ${CMAKE_BINARY_DIR}/libtorch-include)
  # Ninja compares the headers' times, and another LibTorch's may be older than the objects made with this one.
  if(EXISTS ${_headers}/ATen)
    file(REAL_PATH ${_headers}/ATen _before)
    file(REAL_PATH ${LibTorch_INCLUDE_DIR}/ATen _now)
    if(NOT _before STREQUAL _now)
      message(FATAL_ERROR "${CMAKE_BINARY_DIR} was built with the headers in ${_before}, and now those in ${_now} are asked for: "
                          "remove that folder, or build in another one with -B")
    endif()
  endif()
  file(MAKE_DIRECTORY ${_headers})
  foreach(_folder ATen c10 caffe2 torch)
    file(CREATE_LINK ${LibTorch_INCLUDE_DIR}/${_folder} ${_headers}/${_folder} SYMBOLIC)
  endforeach()
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10}
    INTERFACE_INCLUDE_DIRECTORIES "${_headers};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_CPU}
    INTERFACE_LINK_LIBRARIES LibTorch::c10
    INTERFACE_COMPILE_OPTIONS -fopenmp)  # for the pragmas in ATen/Parallel.h; the runtime is LibTorch::openmp
  # at::parallel_for is a template and runs serially in code compiled without OpenMP. The runtime must be LibTorch's own, which the
  # wheel carries: a second one would bring threads of its own.
  add_library(LibTorch::openmp INTERFACE IMPORTED)
  get_filename_component(_libraries ${LibTorch_C10} DIRECTORY)
  if(EXISTS ${_libraries}/libgomp.so.1)
    set_target_properties(LibTorch::openmp PROPERTIES INTERFACE_LINK_LIBRARIES ${_libraries}/libgomp.so.1)
  else()
    find_package(OpenMP REQUIRED COMPONENTS CXX)
    set_target_properties(LibTorch::openmp PROPERTIES INTERFACE_LINK_LIBRARIES "${OpenMP_CXX_LIBRARIES}")
  endif()
endif()
