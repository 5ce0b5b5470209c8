# stagecraft_test(NAME SOURCES a.cpp ... LINK targets... TAGS "[a]" "[b]" [MAIN main.cpp] [TIMEOUT seconds] [LABELS labels...])
# One binary, one ctest entry per tag (a process a case would pay LibTorch's start-up a hundred times). A tag that selects no case fails.
# Under ctest the property tests draw the same cases each time, so that a change is judged by what it changed; run by hand they draw new
# ones (CONTRIBUTING.md).

find_package(Catch2 QUIET)
find_package(rapidcheck QUIET)
if(NOT Catch2_FOUND OR NOT rapidcheck_FOUND)
  message(FATAL_ERROR "The tests need Catch2 and RapidCheck, which scripts/setup.sh installs. -DSTAGECRAFT_TESTS=OFF builds without tests.")
endif()

# A tag that selects no case must fail: Catch2 2 has to be told, Catch2 3 does so by itself and has no such word.
set(stagecraft_catch_arguments "")
if(Catch2_VERSION VERSION_LESS 3)
  set(stagecraft_catch_arguments --warn NoTests)
endif()

add_library(stagecraft_catch_main STATIC ${PROJECT_SOURCE_DIR}/test/support/catch_main.cpp)
target_link_libraries(stagecraft_catch_main PUBLIC Catch2::Catch2)
target_include_directories(stagecraft_catch_main PUBLIC ${PROJECT_SOURCE_DIR})
target_compile_features(stagecraft_catch_main PUBLIC cxx_std_20)
target_compile_options(stagecraft_catch_main PRIVATE -O0)
if(STAGECRAFT_SANITIZE)  # Catch2 is as it is: they would double the time that it takes to compile
  target_compile_options(stagecraft_catch_main PRIVATE -fno-sanitize=all)
endif()

set(stagecraft_test_headers ${PROJECT_SOURCE_DIR}/test/support/catch.h ${plain_headers})
stagecraft_precompiled(test_plain HEADERS ${stagecraft_test_headers}
                       LINK Catch2::Catch2 fmt::fmt nlohmann_json::nlohmann_json)
stagecraft_compile_unoptimized(stagecraft_precompiled_test_plain)
if(STAGECRAFT_ENGINE)
  stagecraft_precompiled(test_torch HEADERS <ATen/ATen.h> ${stagecraft_test_headers}
                         LINK Catch2::Catch2 fmt::fmt nlohmann_json::nlohmann_json LibTorch::cpu)
  stagecraft_compile_unoptimized(stagecraft_precompiled_test_torch)
endif()

# A test's TIMEOUT is what it needs on a quiet machine, with room. A limit is there for what hangs, so each gets three times that: machines
# are slow and have neighbours. Sanitizers take several times as long again. Called at the end of a directory, when each test has its own.
# A test of several processors begins before all of one: where these take each processor as it gets free, it would wait for the last of
# them, and the machine for it.
function(stagecraft_allow_time)
  set(times 3)
  if(STAGECRAFT_SANITIZE)
    set(times 10)
  endif()
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    get_test_property(${test} TIMEOUT seconds)
    if(seconds)
      math(EXPR seconds "${seconds} * ${times}")
      set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
    endif()
    get_test_property(${test} PROCESSORS processors)
    if(processors GREATER 1)
      get_test_property(${test} COST cost)
      if(NOT cost)
        set(cost 0)
      endif()
      math(EXPR cost "${cost} + 1000")
      set_tests_properties(${test} PROPERTIES COST ${cost})
    endif()
  endforeach()
endfunction()

# At the end of this directory, once.
macro(stagecraft_allow_time_at_end)
  cmake_language(DEFER GET_CALL_IDS deferred)
  if(NOT "stagecraft_allow_time" IN_LIST deferred)
    cmake_language(DEFER ID stagecraft_allow_time CALL stagecraft_allow_time)
  endif()
endmacro()

function(stagecraft_test name)
  cmake_parse_arguments(ARG "" "MAIN;TIMEOUT" "SOURCES;LINK;TAGS;LABELS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES} ${ARG_MAIN})
  stagecraft_rules(test_${name})
  stagecraft_use_precompiled(test_${name} TEST ${ARG_LINK})
  stagecraft_compile_unoptimized(test_${name})
  target_link_libraries(test_${name} PRIVATE ${ARG_LINK} Catch2::Catch2)
  target_compile_definitions(test_${name} PRIVATE STAGECRAFT_TEST_DATA="${PROJECT_SOURCE_DIR}/test/data"
    STAGECRAFT_CAPTURED_MODELS="${PROJECT_BINARY_DIR}/test/captured")
  if(NOT ARG_MAIN)
    target_link_libraries(test_${name} PRIVATE stagecraft_catch_main)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  stagecraft_allow_time_at_end()
  set(draws "seed=20261121")
  if(STAGECRAFT_SANITIZE)  # other numbers take the same paths: fewer draws do
    string(APPEND draws " max_success=30")
  endif()
  foreach(tag IN LISTS ARG_TAGS)
    string(REGEX REPLACE "[][]" "" plain ${tag})
    add_test(NAME ${name}.${plain} COMMAND test_${name} ${tag} ${stagecraft_catch_arguments})
    set_tests_properties(${name}.${plain} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "RC_PARAMS=${draws}")
  endforeach()
endfunction()
