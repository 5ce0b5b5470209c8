# LibTorch as imported targets LibTorch::cpu (c10, torch_cpu), without LibTorch's own CMake package: that one wants nvcc and
# drags CUDA into every link. Looks in STAGECRAFT_LIBTORCH (a torch folder with include/ and lib/), then in the virtual environment
# that scripts/setup.sh makes.

set(STAGECRAFT_LIBTORCH "$ENV{STAGECRAFT_LIBTORCH}" CACHE PATH "LibTorch: a folder with include/ and lib/")
if(DEFINED ENV{XDG_CACHE_HOME})
  set(_cache "$ENV{XDG_CACHE_HOME}")
else()
  set(_cache "$ENV{HOME}/.cache")
endif()
file(GLOB _venv_torch "${_cache}/stagecraft/venv-torch-2.11.0/lib/python3*/site-packages/torch")

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h
          HINTS ${STAGECRAFT_LIBTORCH} ${_venv_torch} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(LibTorch_C10 c10 HINTS ${STAGECRAFT_LIBTORCH} ${_venv_torch} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_CPU torch_cpu HINTS ${STAGECRAFT_LIBTORCH} ${_venv_torch} PATH_SUFFIXES lib NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU LibTorch_C10 LibTorch_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or point STAGECRAFT_LIBTORCH at a LibTorch, or build the planner alone with -DSTAGECRAFT_ENGINE=OFF")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  # LibTorch's include folder also holds an fmt of another version than the one we link; expose only LibTorch's own headers.
  set(_headers ${CMAKE_BINARY_DIR}/libtorch-include)
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
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_C10 LibTorch_CPU)
