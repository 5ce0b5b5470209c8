#!/usr/bin/env bash
# Builds the fuzz targets (test/fuzz) with clang and runs each: everything that reads a file, against whatever libFuzzer makes up.
#   scripts/fuzz.sh [SECONDS] [TARGET...]      default: 60 seconds each, all targets; up to three per core at once
# `planner` as a target stands for all that do without LibTorch, `engine` for the others.
# FUZZ_SEED=N makes a run from nothing try the same inputs again, as far as it gets in that time.
# It starts from the small files in test/fuzz/seeds/TARGET. What it learns stays in build-fuzz/corpus and is where the next run begins.
# Ends with 1 where one finds a crash, a hang, or input that takes more memory than the target may, and says which file holds it.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz.sh: expected a number of seconds, found $seconds" >&2; exit 2; }
shift $(($# > 0 ? 1 : 0))

planner=(program_text program_json pytorch_csv graph_text profile_json cluster_json plan_json plan_request timeline summary metrics manifest run_dir)
engine=(run_config safetensors idx text tokens arrays model_folder weight_files)
[ $# -gt 0 ] || set -- planner engine
targets=()
for target in "$@"; do
  case "$target" in
    planner) targets+=("${planner[@]}") ;;
    engine) targets+=("${engine[@]}") ;;
    *) targets+=("$target") ;;
  esac
done
# LibTorch is asked for only where a target needs it.
with_engine=OFF
for target in "${targets[@]}"; do
  [[ " ${engine[*]} " != *" $target "* ]] || with_engine=ON
done

clang=$(command -v clang++-14 || command -v clang++) || {
  echo "fuzz.sh: no clang++; install clang-14 and libclang-rt-14-dev, and libomp-14-dev for the targets with LibTorch" >&2
  exit 2
}
build="build-fuzz"
mkdir -p $build
cmake -S . -B $build -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g" -DSTAGECRAFT_ENGINE=$with_engine \
  -DSTAGECRAFT_TESTS=OFF -DSTAGECRAFT_FUZZ=ON -DSTAGECRAFT_SANITIZE=fuzzer-no-link,address,undefined > $build/configure.log ||
  { cat $build/configure.log >&2; exit 1; }
cmake --build $build --target "${targets[@]/#/fuzz_}" > $build/build.log || { cat $build/build.log >&2; exit 1; }

# The longest one input may take, in seconds, and the most memory, in MiB. Readers of a run's files get little of both; those that plan,
# prove and simulate what they have read get more.
limits() {
  case "$1" in
    program_* | pytorch_csv | graph_text | *_json | plan_request) echo "-timeout=30 -rss_limit_mb=2048" ;;
    *) echo "-timeout=10 -rss_limit_mb=512" ;;
  esac
}

# Targets that read files write them here: in memory where the machine allows it.
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" stagecraft-fuzz-XXXXXX)
trap 'rm -rf "$work"' EXIT

fuzz() {
  local target=$1 log=$build/$1.log leaks=1
  mkdir -p "$build/corpus/$target" "$build/found"
  [[ " ${engine[*]} " != *" $target "* ]] || leaks=0  # LibTorch leaks on purpose at exit
  # Memory that the sanitizer keeps back from reuse would count as the target's.
  # shellcheck disable=SC2046  # limits are words
  if ! TMPDIR=$work UBSAN_OPTIONS=halt_on_error=1 ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=$leaks \
    "$build/test/fuzz/fuzz_$target" -seed="${FUZZ_SEED:-0}" -max_total_time="$seconds" $(limits "$target") \
    -artifact_prefix="$build/found/$target-" "$build/corpus/$target" "test/fuzz/seeds/$target" > "$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "fuzz.sh: $target failed; the input is in $build/found, the whole log is $log" >&2
    return 1
  fi
  echo "fuzz: $target: $(grep -o 'Done .*' "$log"), $(grep -o 'cov: [0-9]*' "$log" | tail -n 1) edges," \
    "$(grep -o 'rss: [0-9]*Mb' "$log" | tail -n 1)"
}

failed=0
running=0
for target in "${targets[@]}"; do
  if [ $running -eq $((3 * $(nproc))) ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
while [ $running -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
exit $failed
