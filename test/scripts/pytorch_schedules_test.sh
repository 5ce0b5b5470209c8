#!/usr/bin/env bash
# PyTorch's own schedules under `stagecraft check`, as docs/guides/pytorch.md says, at a few sizes; and ours in PyTorch's runtime.
#   pytorch_schedules_test.sh STAGECRAFT PYTHON SOURCE
set -euo pipefail
table=$("$2" "$3/scripts/pytorch_schedules.py" --stagecraft "$1" --ranks 2 4 --micro-batches 4 8)

expect() {
  grep -qF -- "$1" <<< "$table" || { echo "expected the line: $1"; echo "$table"; exit 1; }
}
expect "| GPipe, as run | 4 | 4 |  |  |  |  | 4 |"
expect "| 1F1B, its order | 4 |  |  | 4 | 4 |  | 4 |"
expect "| 1F1B, as run | 4 | 4 |  |  |  |  | 4 |"
expect "| LoopedBFS, with communication | 12 |  | 12 |  |  |  | 12 |"
expect "| Interleaved1F1B, with communication | 12 | 12 |  |  |  |  | 12 |"
expect "| InterleavedZeroBubble, with communication | 12 | 12 |  |  |  |  | 12 |"
expect "| ZBVZeroBubble, with communication | 4 | 4 |  |  |  |  | 4 |"
expect "| DualPipeV, with communication | 3 | 3 |  |  |  |  | 3 |"
expect "| nothing | pass | accepted |"
expect "| a forward twice | pass | completeness: "

# And ours in PyTorch's runtime.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
converted=()
for program in schedules/1f1b_p3_m4.txt pytorch/Interleaved1F1B-p2-m4-v2.csv; do
  name=$work/$(basename "${program%.*}")
  "$1" convert "$3/test/data/$program" -o "$name.txt"
  "$1" convert "$name.txt" -o "$name.csv"
  "$1" convert "$name.txt" --to csv-comms -o "$name-comms.csv"
  converted+=("$name.csv" compute_only "$name-comms.csv" compute_comms)
done
timeout 200 "$2" "$3/test/scripts/pytorch_runs_ours.py" "${converted[@]}"
