# `cmake --install BUILD --prefix DIR`: the command, and the library for projects that find_package(stagecraft).
#
# The command: bin/stagecraft, the libraries it brings along (LibTorch's and what those need from the virtual environment; fmt and
# spdlog) in lib/, configs/ and the script that fetches their data; the tools in Python. The tree runs on any machine with the same or a newer libc and, for
# the engine, Open MPI.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
if(NOT STAGECRAFT_STATIC)  # which has no place to look for libraries
  set_target_properties(stagecraft PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()

set(_library_folders "")
if(STAGECRAFT_ENGINE)
  get_filename_component(_torch_lib "${LibTorch_CPU}" DIRECTORY)
  file(GLOB _wheel_libs "${_torch_lib}/../../nvidia/*/lib")
  set(_library_folders ${_torch_lib} ${_wheel_libs})
endif()
install(TARGETS stagecraft RUNTIME_DEPENDENCY_SET stagecraft_libraries)
# All that is installed, which is less than all.
add_custom_target(installed DEPENDS stagecraft)
install(RUNTIME_DEPENDENCY_SET stagecraft_libraries
  DIRECTORIES ${_library_folders}
  # What belongs to the machine it runs on: libc and its family, the driver, and MPI, which must match the launcher.
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|util|pthread|gcc_s|stdc\\+\\+)\\.so" "^libcuda\\.so" "^libmpi" "^libopen-" "^libhwloc" "^libevent" "^libudev" "^libz\\.so"
  POST_EXCLUDE_REGEXES "/libc\\.so")
install(DIRECTORY configs DESTINATION share/stagecraft)
# The data of the configs.
install(PROGRAMS scripts/fetch_data.sh scripts/environment.sh DESTINATION share/stagecraft/scripts)
install(FILES LICENSE DESTINATION share/stagecraft)
# The tools in Python, which look for a Python when they are called, most of them for one with torch.
if(STAGECRAFT_ENGINE)
  foreach(tool stagecraft-capture stagecraft-follow stagecraft-generate stagecraft-images stagecraft-tokenize)
    configure_file(cmake/python_tool.in ${PROJECT_BINARY_DIR}/${tool} @ONLY
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    install(PROGRAMS scripts/${tool} DESTINATION ${CMAKE_INSTALL_BINDIR})
  endforeach()
  install(DIRECTORY python/ DESTINATION share/stagecraft/python FILES_MATCHING PATTERN "*.py" PATTERN "torch_versions.txt" PATTERN "wheel" EXCLUDE PATTERN "__pycache__" EXCLUDE)
endif()

# The library: static archives, one per room, in two components. `planner` needs no LibTorch, MPI or CUDA; `engine` is all.
# stagecraft_component(NAME rooms...): installs the rooms' archives, and the target stagecraft::NAME that links them.
function(stagecraft_component name)
  add_library(stagecraft_component_${name} INTERFACE)
  set_target_properties(stagecraft_component_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(stagecraft_component_${name} INTERFACE cxx_std_20)
  set(targets stagecraft_component_${name})
  foreach(room IN LISTS ARGN)
    set_target_properties(stagecraft_${room} PROPERTIES EXPORT_NAME room_${room})
    target_link_libraries(stagecraft_component_${name} INTERFACE stagecraft_${room})
    list(APPEND targets stagecraft_${room})
    add_dependencies(installed stagecraft_${room})
  endforeach()
  install(TARGETS ${targets} EXPORT stagecraft_${name}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/stagecraft INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT stagecraft_${name} NAMESPACE stagecraft:: FILE stagecraft-${name}.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/stagecraft)
endfunction()

# Public headers: what a project may include. They include each other, the standard library and, for the engine,
# ATen/core/Tensor.h; nothing else (test/scripts/public_headers.py).
set(_public_headers
  base/describe.h base/error.h base/fields.h base/ids.h base/registry.h
  schedules/program/action.h schedules/program/orders.h schedules/program/placement.h schedules/program/program.h
  schedules/program/program_text.h schedules/program/recompute.h schedules/program/step_program.h schedules/program/timeline.h
  schedules/costs/costs.h schedules/rules/device_waits.h schedules/rules/transport_rules.h schedules/list_scheduling/list_scheduler.h schedules/lowering/lowering.h
  schedules/checker/checker.h schedules/checker/proof.h schedules/simulator/results.h schedules/simulator/simulator.h
  schedules/pictures/panel.h schedules/pictures/svg.h schedules/pictures/text.h
  schedules/generators/assembly.h schedules/generators/registry.h schedules/generators/schedule.h
  partitioner/plan/cluster.h partitioner/plan/plan.h partitioner/search/planner.h partitioner/plan/profile.h partitioner/plan/jittered_step.h
  cli/command_line.h)
set(_umbrellas planner)
stagecraft_component(planner planner_command ${STAGECRAFT_PLANNER_ROOMS} schedules partitioner)
if(STAGECRAFT_ENGINE)
  list(APPEND _umbrellas engine)
  list(APPEND _public_headers
    models/tensors/batch_fields.h models/tensors/bundle.h models/check/check_gradients.h models/captured/compiled/compiled_for.h models/layers/dropout_masks.h models/layers/number_check.h models/layers/layer.h models/layers/layer_estimate.h models/layers/layer_facts.h models/losses/loss.h models/tensors/matrix_products.h models/tensors/random.h models/tensors/random_key.h models/tensors/shape_text.h models/tensors/sample.h models/tensors/tensors.h
    models/losses/loss_factor.h
    models/families/registry.h models/layers/functional.h models/layers/registry.h models/layers/site.h
    models/layers/activation.h models/layers/attention.h models/layers/batch_norm.h models/layers/conv2d.h models/layers/delay.h
    models/layers/dropout.h models/layers/embedding.h models/layers/feed_forward.h models/layers/flatten.h models/layers/layer_norm.h
    models/layers/linear.h models/layers/max_pool.h
    models/data/dataset.h engine/optimizers/optimizer.h engine/records/settings/learning_rate.h)
  get_property(_rooms GLOBAL PROPERTY STAGECRAFT_ROOMS)
  list(REMOVE_ITEM _rooms ${STAGECRAFT_PLANNER_ROOMS} cli planner_command engine_command)
  stagecraft_component(engine engine_command ${_rooms})
endif()
# In the tree headers name each other by their path from its top; installed ones as <stagecraft/...>, since a project may have a base/ too.
# stagecraft_public_header(HEADER NAME)
function(stagecraft_public_header header name)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  file(READ ${header} text)
  string(REGEX REPLACE "#include \"([^\"]+)\"" "#include <stagecraft/\\1>" text "${text}")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/public/${name} CONTENT "${text}" @ONLY)
  get_filename_component(folder ${name} DIRECTORY)
  install(FILES ${PROJECT_BINARY_DIR}/public/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stagecraft/${folder})
endfunction()
foreach(_header IN LISTS _public_headers)
  stagecraft_public_header(${_header} ${_header})
endforeach()
foreach(_umbrella IN LISTS _umbrellas)
  stagecraft_public_header(cli/umbrella/${_umbrella}.h ${_umbrella}.h)
endforeach()

if(STAGECRAFT_ENGINE)
  get_filename_component(_built_with ${LibTorch_C10}/../.. ABSOLUTE)
  install(FILES cmake/FindLibTorch.cmake cmake/FindNccl.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/stagecraft)
endif()
configure_package_config_file(cmake/stagecraftConfig.cmake.in ${PROJECT_BINARY_DIR}/package/stagecraftConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/stagecraft)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/stagecraftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/stagecraftConfig.cmake ${PROJECT_BINARY_DIR}/package/stagecraftConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/stagecraft)
# find_package looks beside what PATH names, so in this build tree, too, where headers and components are not where a package has
# them. It goes on to other places, and lists this one with the reason, which is all that a version can say.
set(_why "${PROJECT_VERSION} in a build tree: install it (cmake --install ${PROJECT_BINARY_DIR} --prefix DIR) and give -DCMAKE_PREFIX_PATH=DIR")
file(WRITE ${PROJECT_BINARY_DIR}/stagecraftConfig.cmake "message(FATAL_ERROR \"stagecraft ${_why}\")\n")
file(WRITE ${PROJECT_BINARY_DIR}/stagecraftConfigVersion.cmake "set(PACKAGE_VERSION \"${_why}\")\nset(PACKAGE_VERSION_UNSUITABLE TRUE)\n")
