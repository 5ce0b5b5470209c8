# `cmake --install BUILD --prefix DIR`: bin/stagecraft, the libraries it brings along (LibTorch's and what those need from the virtual
# environment; fmt and spdlog) in lib/, configs/ and the script that fetches their data. The tree runs on any machine with the same or a newer libc and, for the engine, Open MPI.

include(GNUInstallDirs)
set_target_properties(stagecraft PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")

set(_library_folders "")
if(STAGECRAFT_ENGINE)
  get_filename_component(_torch_lib "${LibTorch_CPU}" DIRECTORY)
  file(GLOB _wheel_libs "${_torch_lib}/../../nvidia/*/lib")
  set(_library_folders ${_torch_lib} ${_wheel_libs})
endif()
install(TARGETS stagecraft RUNTIME_DEPENDENCY_SET stagecraft_libraries)
install(RUNTIME_DEPENDENCY_SET stagecraft_libraries
  DIRECTORIES ${_library_folders}
  # What belongs to the machine it runs on: libc and its family, the driver, and MPI, which must match the launcher.
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|util|pthread|gcc_s|stdc\\+\\+)\\.so" "^libcuda\\.so" "^libmpi" "^libopen-" "^libhwloc" "^libevent" "^libudev" "^libz\\.so"
  POST_EXCLUDE_REGEXES "/libc\\.so")
install(DIRECTORY configs DESTINATION share/stagecraft)
# The data of the configs.
install(PROGRAMS scripts/fetch_data.sh scripts/environment.sh DESTINATION share/stagecraft/scripts)
install(FILES LICENSE DESTINATION share/stagecraft)
