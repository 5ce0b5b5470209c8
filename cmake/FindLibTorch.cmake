# LibTorch as imported targets LibTorch::cpu (c10, torch_cpu), without LibTorch's own CMake package: that one wants nvcc and
# drags CUDA into every link. It is STAGECRAFT_LIBTORCH (a torch folder with include/ and lib/), by -D or from the environment, where
# a new value is noticed, or else what scripts/setup.sh installs.

set(STAGECRAFT_LIBTORCH "$ENV{STAGECRAFT_LIBTORCH}" CACHE PATH "LibTorch: a folder with include/ and lib/")
set(_exported "$ENV{STAGECRAFT_LIBTORCH}")
if(_exported AND DEFINED STAGECRAFT_LIBTORCH_EXPORTED AND NOT _exported STREQUAL STAGECRAFT_LIBTORCH_EXPORTED)
  set_property(CACHE STAGECRAFT_LIBTORCH PROPERTY VALUE "${_exported}")
endif()
set(STAGECRAFT_LIBTORCH_EXPORTED "${_exported}" CACHE INTERNAL "its value at the last configure")

set(_torch "${STAGECRAFT_LIBTORCH}")
if(NOT _torch)
  # Where it is and which version is written down once, in environment.sh.
  execute_process(COMMAND bash -c ". '${PROJECT_SOURCE_DIR}/scripts/environment.sh' && printf %s \"$stagecraft_venv\""
                  OUTPUT_VARIABLE _venv COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB _torch "${_venv}/lib/python3*/site-packages/torch")
endif()

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h PATHS ${_torch} PATH_SUFFIXES include NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10 c10 PATHS ${_torch} PATH_SUFFIXES lib NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_CPU torch_cpu PATHS ${_torch} PATH_SUFFIXES lib NO_DEFAULT_PATH NO_CACHE)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU LibTorch_C10 LibTorch_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or point STAGECRAFT_LIBTORCH at a LibTorch, or build the planner alone with -DSTAGECRAFT_ENGINE=OFF")

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
    INTERFACE_COMPILE_OPTIONS -fopenmp)  # for the pragmas in ATen/Parallel.h; the runtime is the one libtorch_cpu links
endif()
