#!/usr/bin/env bash
# Sets up, builds and runs every check and test. Half an hour on 2 cores with a warm compiler cache.
#   scripts/test.sh [--full] [ctest arguments, e.g. -L fast or -R equality]
#     --full: all cases of all tests (STAGECRAFT_FULL in CONTRIBUTING.md)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

if [ "${1:-}" = --full ]; then
  export STAGECRAFT_FULL=1
  shift
fi

phase_start=$SECONDS
computed=0
# What it took, and the processor time of all that ended in it: less than the cores have is time that was waited.
phase() {
  local -a about
  read -ra about < /proc/$$/stat
  local seconds=$(((about[15] + about[16]) / $(getconf CLK_TCK)))
  echo "test: $1 took $(stagecraft_took $((SECONDS - phase_start))), $(stagecraft_took $((seconds - computed))) of processor time on $(nproc) cores"
  phase_start=$SECONDS computed=$seconds
}

# What needs no LibTorch is read by clang-tidy while LibTorch comes.
echo "test: set-up (about a minute on a new machine, a second later)"
scripts/setup.sh --planner-only --lint
plain=$(mktemp)
trap 'rm -f "$plain"' EXIT
scripts/lint.sh --tidy-plain > "$plain" 2>&1 &
scripts/setup.sh --lint --models --gpu --follow --browser --docs
wait $! || { cat "$plain"; exit 1; }
phase set-up

echo "test: building with $(nproc) cores (about 5 minutes on 2 cores from nothing)"
cmake --preset release > build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
rm -f build-configure.log
cmake --build --preset release
phase build

echo "test: the planner alone configures without LibTorch, MPI and CUDA (the build above has its binary, which tests run)"
cmake --preset planner > /dev/null

echo "test: format and clang-tidy"
scripts/lint.sh --tidy --includes
phase "format and clang-tidy"

# Only where all of it ends in time: CI has a limit, and a machine that is slow today needs it for the tests.
if [ "$#" = 0 ] && [ "$SECONDS" -lt 2400 ]; then
  echo "test: parts of it under sanitizers (about 6 minutes on 2 cores)"
  scripts/sanitize.sh
  phase sanitizers
elif [ "$#" = 0 ]; then
  echo "test: sanitizers are left out, since $(stagecraft_took "$SECONDS") are over: scripts/sanitize.sh runs them" >&2
fi

echo "test: tests"
# Fuzzing is for those who ask for it: it builds its targets first, with another compiler.
[ "$#" -gt 0 ] || set -- -LE fuzz
# One OpenMP thread per test: ranks are processes or threads of their own here. Two tests more than there are cores, because some wait.
# A test that fails is tried once more: on a loaded machine a bound of time may pass for reasons that are not the test's. Its first
# failure is printed whole, and its name again at the end: whoever reads that has a race to look for.
result=0
OMP_NUM_THREADS=1 ctest --test-dir build --output-on-failure --repeat until-pass:2 -j "$(($(nproc) + 2))" "$@" || result=$?
phase tests
logs=build/Testing/Temporary
twice=$(sed -n 's/^"\(.*\)" start time: .*/\1/p' "$logs/LastTest.log" | sort | uniq -d)
[ "$result" -eq 0 ] || twice=$(grep -vxFf <(cut -d: -f2- "$logs/LastTestsFailed.log") <<< "$twice" || true)
[ -z "$twice" ] || echo "test: passed at the second try only: ${twice//$'\n'/ }" >&2
exit "$result"
