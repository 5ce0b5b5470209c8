#!/usr/bin/env bash
# Whether a change leaves plans and programs as they are, byte for byte: writes 200 plans of `--schedule auto` for random requests, and
# every program of the schedules' grid as lowered, proved and simulated, and compares them with those of another build.
#   cmake --preset release -DSTAGECRAFT_BENCHMARKS=ON && ninja -C build bench_auto_plans bench_grid_programs
#   scripts/bench/unchanged.sh BUILD FOLDER            writes what BUILD gives, with a list of SHA-256 sums; about 2 minutes on a core
#   scripts/bench/unchanged.sh BUILD FOLDER BEFORE     and compares it with the folder of a build before the change
# Searches are bounded by counted work, so times and the machine's load do not matter. Needs about 60 MB per folder.
set -euo pipefail

[ $# = 2 ] || [ $# = 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build=$1 folder=$2 before=${3:-}
rm -rf "$folder/plans" "$folder/programs"
"$build/test/bench/bench_auto_plans" "$folder/plans"
"$build/test/bench/bench_grid_programs" "$folder/programs"
(cd "$folder" && find plans programs -type f | LC_ALL=C sort | xargs sha256sum > SHA256)
echo "$(find "$folder/plans" -name '*.json' | wc -l) plans, $(cat "$folder"/programs/*.txt | grep -c '^== ') programs: $folder/SHA256"

[ -n "$before" ] || exit 0
if cmp -s "$before/SHA256" "$folder/SHA256"; then
  echo "all $(wc -l < "$folder/SHA256") files are equal to those in $before"
  exit 0
fi
echo "$(diff "$before/SHA256" "$folder/SHA256" | grep -c '^>') files differ from those in $before:"
for kind in plans programs; do
  diff -r -u "$before/$kind" "$folder/$kind" | cut -c 1-300 | head -60 || true
done
exit 1
