#!/usr/bin/env bash
# From a fresh machine to a trained model: sets up, builds, fetches Shakespeare, then profiles, plans, checks and trains a small GPT over
# two ranks under mpirun, and prints the report. About 6 minutes on 2 cores from nothing, of which the build is 3.
#   scripts/quickstart.sh [RUN_DIR]          default: runs/quickstart, with a number where that exists
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

run_dir=${1:-runs/quickstart}
for ((n = 2; ; ++n)); do
  [ -e "$run_dir" ] || break
  run_dir=${1:-runs/quickstart}-$n
done
config=configs/quickstart_gpt.json
phase_start=$SECONDS
took=()
phase() {
  took+=("$(printf '%-8s %s' "$1" "$(stagecraft_took $((SECONDS - phase_start)))")")
  phase_start=$SECONDS
}
say() { printf '\n== %s\n' "$*"; }
oversubscribe=()
ranks() { mpirun -np 2 "${oversubscribe[@]}" "$@"; }

say "set-up (about a minute on a new machine, a second later)"
scripts/setup.sh
phase set-up
# Told of more ranks than cores, Open MPI neither binds the ranks to cores nor spins while it waits; so only where it must be told.
ranks true > /dev/null 2>&1 || oversubscribe=(--oversubscribe)

say "build (about 3 minutes on 2 cores from nothing)"
cmake --preset release > /dev/null
cmake --build --preset release --target installed stagecraft_python
phase build

say "data: the works of Shakespeare, 5 MB"
scripts/fetch_data.sh --text data
phase data

mkdir -p "$run_dir.plan"
say "profile: every layer's time and memory, both ranks busy as in the run"
ranks build/stagecraft profile "$config" -o "$run_dir.plan/profile.json" --links
say "plan: two balanced stages"
build/stagecraft plan "$config" --profile "$run_dir.plan/profile.json" -o "$run_dir.plan/plan.json"
say "check: the proof of the plan's program"
build/stagecraft check "$run_dir.plan/plan.json"
say "simulate: what it should cost"
build/stagecraft simulate "$run_dir.plan/plan.json" --svg "$run_dir.plan/simulated.svg"
phase plan

say "train: about 2 minutes"
ranks build/stagecraft train "$config" --plan "$run_dir.plan/plan.json" --set run_dir="$run_dir"
phase train

say "report: predicted against measured"
build/stagecraft report "$run_dir" --html "$run_dir/report.html"
phase report

say "times"
printf '  %s\n' "${took[@]}"
echo "  pictures: $run_dir.plan/simulated.svg, $run_dir/report.html; $run_dir/timeline.json opens in ui.perfetto.dev"
