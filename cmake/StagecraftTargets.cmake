# The rules every target follows: C++20, many warnings, includes from the root of the tree.

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(STAGECRAFT_CCACHE ccache)
if(STAGECRAFT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers are found by content, as ccache asks for (its manual, "Precompiled headers"), which is hashed once: they are large.
  # Paths below the sources count from the build folder, so another clone or worktree finds what this one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_INODECACHE=true
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true ${STAGECRAFT_CCACHE})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# What failed checks name is a path from the top of the tree. Unity sources include by absolute paths, and with those in the text no other
# worktree would find what this one has compiled.
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)

# The archives also go into the module that Python loads. Nothing in them is to be replaced by another library's, so that costs no time.
add_compile_options(-fPIC -fno-semantic-interposition)

set(STAGECRAFT_SANITIZE "" CACHE STRING "Sanitizers for everything, as -fsanitize= takes them: address,undefined or thread")
if(STAGECRAFT_SANITIZE)
  # The one flag that must be global: all objects of a program have to agree on it.
  # GCC takes optionals for uninitialized once they are instrumented.
  add_compile_options(-fsanitize=${STAGECRAFT_SANITIZE} -fno-omit-frame-pointer $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${STAGECRAFT_SANITIZE})
endif()

# Another compiler may warn where there is nothing to fix; that should stop nobody who only wants to build.
set(_silent OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
  set(_silent ON)
endif()
option(STAGECRAFT_WERROR "Warnings are errors; on with the compiler that CI has, g++ 12" ${_silent})

# A source costs seconds before its first line, for the headers and their templates. Together they pay once; but one change
# compiles all of them again, and what one forgets to include another may bring (scripts/lint.sh --includes finds it). So all
# presets that build everything once have it, and dev does not.
option(STAGECRAFT_UNITY "Compile up to 16 sources of a target as one: a third of the time for all, more for one change" ON)

# GCC spends a tenth of its time looking for memory to use again. Where there are 2.5 GB for each of the sources that Ninja compiles at
# once, it gets up to 1 GB before it begins to; the largest sources need 1.6 GB then, and 1.3 otherwise.
cmake_host_system_information(RESULT _cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT _memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR _needed_mb "2500 * (${_cores} + 2)")
set(_roomy OFF)
if(_memory_mb GREATER_EQUAL _needed_mb)
  set(_roomy ON)
endif()

function(stagecraft_rules target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF UNITY_BUILD ${STAGECRAFT_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
    # GCC stops inlining where a source has grown by 40 %, which one made of 16 soon has (`lower` and `check` took 1.1 to 1.2 times as long).
    "$<$<AND:$<BOOL:${STAGECRAFT_UNITY}>,$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:--param=inline-unit-growth=400;--param=large-unit-insns=100000>"
    "$<$<AND:$<BOOL:${_roomy}>,$<CXX_COMPILER_ID:GNU>>:--param=ggc-min-heapsize=1000000>"
    # False for references into a registry that outlives them: find_schedule(name, {...}).
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>
    $<$<BOOL:${STAGECRAFT_WERROR}>:-Werror>)
endfunction()

# Optimizing what is called a few times only costs build time; the code of tests themselves is not optimized at all, what they test is.
function(stagecraft_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  get_target_property(set ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  if(TARGET ${set}_quick)
    target_precompile_headers(${target} REUSE_FROM ${set}_quick)
  endif()
endfunction()
function(stagecraft_compile_unoptimized target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
endfunction()

# stagecraft_precompiled(SET [QUICK] HEADERS <a>... LINK targets...): what nearly every source includes, parsed once: one set for sources
# without LibTorch, one for those with it, and the same for tests. A target joins a set by what it links; the sets change nothing but build
# time. QUICK: for targets that are compiled quickly, too. Since GCC 13 theirs is another, because it reads no precompiled header of another
# level of optimization.
function(stagecraft_precompiled set)
  cmake_parse_arguments(ARG "QUICK" "" "HEADERS;LINK" ${ARGN})
  set(target stagecraft_precompiled_${set})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled_${set}.cpp CONTENT "// holds the precompiled headers of the set ${set}\n")
  add_library(${target} OBJECT ${CMAKE_BINARY_DIR}/precompiled_${set}.cpp)
  target_link_libraries(${target} PRIVATE ${ARG_LINK})
  target_precompile_headers(${target} PRIVATE ${ARG_HEADERS})
  stagecraft_rules(${target})
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  if(ARG_QUICK AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    stagecraft_precompiled(${set}_quick HEADERS ${ARG_HEADERS} LINK ${ARG_LINK})
    stagecraft_compile_quickly(${target}_quick)
  endif()
endfunction()

# stagecraft_use_precompiled(TARGET [TEST] links...)
function(stagecraft_use_precompiled target)
  cmake_parse_arguments(ARG "TEST" "" "" ${ARGN})
  set(links ${ARG_UNPARSED_ARGUMENTS})
  set(prefix "")
  if(ARG_TEST)
    set(prefix "test_")
  endif()
  list(TRANSFORM links REPLACE "^LibTorch::cpu$|^stagecraft::(tensors|data|layers|captured.*|families|models|optimizers|transport|engine|profiler|config|run.*)$|^stagecraft_pipeline_case$" "torch")
  if("torch" IN_LIST links)
    target_precompile_headers(${target} REUSE_FROM stagecraft_precompiled_${prefix}torch)
  else()
    target_precompile_headers(${target} REUSE_FROM stagecraft_precompiled_${prefix}plain)
  endif()
endfunction()

# The include folder of a target: links to the headers in the folders of its sources, as <folder>/<header>, the path from the top of the
# tree that a reader follows. Since a target gets those of what it links and of nothing else, an include against the drawing in
# docs/architecture.md does not compile.
function(stagecraft_headers target)
  set(room ${PROJECT_BINARY_DIR}/rooms/${target})
  set(folders "")
  foreach(source IN LISTS ARGN)
    get_filename_component(folder ${source} DIRECTORY)
    list(APPEND folders ${folder})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    file(GLOB headers CONFIGURE_DEPENDS ${folder}/*.h)
    file(RELATIVE_PATH below ${PROJECT_SOURCE_DIR} ${folder})
    file(MAKE_DIRECTORY ${room}/${below})
    foreach(header IN LISTS headers)
      get_filename_component(file ${header} NAME)
      file(CREATE_LINK ${header} ${room}/${below}/${file} SYMBOLIC)
    endforeach()
  endforeach()
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${room}>)
endfunction()

# stagecraft_library(NAME [FOLDER folder] SOURCES a.cpp ... PUBLIC targets... PRIVATE targets...): one target per folder, alias
# stagecraft::NAME. The sources lie in `folder` below the current one.
function(stagecraft_library name)
  cmake_parse_arguments(ARG "" "FOLDER" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_FOLDER}/)
  add_library(stagecraft_${name} STATIC ${ARG_SOURCES})
  add_library(stagecraft::${name} ALIAS stagecraft_${name})
  stagecraft_headers(stagecraft_${name} ${ARG_SOURCES})
  # For the test that compares the drawing (test/rooms).
  set_property(GLOBAL APPEND PROPERTY STAGECRAFT_ROOMS ${name})
  set_property(GLOBAL PROPERTY STAGECRAFT_ROOM_${name}_PUBLIC ${ARG_PUBLIC})
  set_property(GLOBAL PROPERTY STAGECRAFT_ROOM_${name}_PRIVATE ${ARG_PRIVATE})
  # Headers alone, and public headers include neither (cmake/StagecraftInstall.cmake): users need not have them.
  foreach(kind PUBLIC PRIVATE)
    set(links ${ARG_${kind}})
    list(TRANSFORM links REPLACE "^(nlohmann_json::.*|CLI11::.*)$" "$<BUILD_INTERFACE:\\1>")
    target_link_libraries(stagecraft_${name} ${kind} ${links})
  endforeach()
  stagecraft_rules(stagecraft_${name})
  stagecraft_use_precompiled(stagecraft_${name} ${ARG_PUBLIC} ${ARG_PRIVATE})
endfunction()
