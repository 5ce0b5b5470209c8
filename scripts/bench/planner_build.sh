#!/usr/bin/env bash
# The planner alone, without LibTorch, MPI and CUDA: how long it takes to build and install, and how large it is.
#   scripts/bench/planner_build.sh [JOBS]        default: as many as there are cores
# Builds twice in a folder of its own, which it removes: from nothing, into an empty compiler cache, and again from that cache (where there is ccache).
set -euo pipefail
cd "$(dirname "$0")/../.."

jobs=${1:-$(nproc)}
[[ $jobs =~ ^[1-9][0-9]*$ ]] || { echo "planner_build.sh: expected a number of jobs, found $jobs" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_DIR=$work/ccache

TIMEFORMAT='%R %U %S'
# measure LABEL COMMAND...: "LABEL 12.3 s (22.1 s of processor time)"; ends where the command fails.
measure() {
  local label=$1 real user system
  shift
  { time "$@" > "$work/log" 2>&1 || touch "$work/failed"; } 2> "$work/time"
  [ ! -e "$work/failed" ] || { cat "$work/log" >&2; echo "planner_build.sh: $* failed" >&2; exit 1; }
  read -r real user system < "$work/time"
  printf '%-22s %s\n' "$label" "$(awk -v wall="$real" -v cpu="$user" -v more="$system" 'BEGIN { printf "%.1f s (%.1f s of processor time)", wall, cpu + more }')"
}
configure() { cmake -S . -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTAGECRAFT_ENGINE=OFF -DSTAGECRAFT_TESTS=OFF; }
build() { cmake --build "$work/build" --target stagecraft -j "$jobs"; }

measure configure configure
measure "build, $jobs at once" build
if command -v ccache > /dev/null; then
  rm -rf "$work/build"
  configure > "$work/log" 2>&1
  measure "build from the cache" build
fi
measure install cmake --install "$work/build" --prefix "$work/tree"
binary=$work/tree/bin/stagecraft
strip -o "$work/stripped" "$binary"
mapfile -t libraries < <(ldd "$binary" | awk '/=>/ { print $1 }')
mebibytes() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
say() { printf '%-22s %s\n' "$1" "$2"; }
say installed "$(mebibytes "$(du -sb "$work/tree" | cut -f1)") in $(find "$work/tree" -type f | wc -l) files"
say binary "$(mebibytes "$(stat -c %s "$binary")"), stripped $(mebibytes "$(stat -c %s "$work/stripped")")"
say "shared libraries" "${#libraries[@]}: ${libraries[*]}"
