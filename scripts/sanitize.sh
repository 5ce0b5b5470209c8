#!/usr/bin/env bash
# Tests under sanitizers, as CI runs them: what some minutes of a small machine are enough for. The asan and tsan presets build everything.
#   scripts/sanitize.sh [address,undefined | thread]...
#     address,undefined: base, schedules, and the readers of programs, profiles, plans and run directories on their seeds and changes of them
#     thread: the transport between the threads of a process
# Without optimization, and of what a debugger knows the lines alone: compiling takes a third of the time, and these tests are small.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

# sanitized SANITIZERS ENGINE TARGETS TESTS: builds the targets, and begins the tests that match: they wait often, and the next build does not.
declare -A running=()
trap 'jobs -p | xargs -r kill 2> /dev/null || true' EXIT
sanitized() {
  local build=build-${1//,/-}-tests
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-g1 -DSTAGECRAFT_SANITIZE="$1" -DSTAGECRAFT_ENGINE="$2" > "$build.log" 2>&1 ||
    { cat "$build.log"; exit 1; }
  rm -f "$build.log"
  # shellcheck disable=SC2086  # a list
  cmake --build "$build" --target $3
  OMP_NUM_THREADS=1 ctest --test-dir "$build" --output-on-failure -j "$(nproc)" -R "$4" > "$build/tests.log" 2>&1 &
  running[$1]=$!
}

[ $# -gt 0 ] || set -- thread address,undefined
for sanitizers in "$@"; do
  case "$sanitizers" in
    address,undefined)
      sanitized "$sanitizers" OFF "test_base test_generators test_lowering test_program test_segments replay" \
        '^(base|generators|lowering|program|segments|replay)\.'
      ;;
    thread) sanitized "$sanitizers" ON test_transport '^transport\.' ;;
    *) echo "sanitize.sh: unknown sanitizers $sanitizers (address,undefined or thread)" >&2; exit 2 ;;
  esac
done
result=0
for sanitizers in "${!running[@]}"; do
  log=build-${sanitizers//,/-}-tests/tests.log
  if wait "${running[$sanitizers]}"; then
    grep -a '^Total' "$log"
    echo "sanitize: $sanitizers is silent"
  else
    result=1
    cat "$log"
  fi
done
exit "$result"
