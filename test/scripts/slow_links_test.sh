#!/usr/bin/env bash
# A run over slow links between network namespaces (scripts/bench/netns.sh): the losses are those of a run without them, and transfers go on
# while ranks compute. Exit code 77 where namespaces or shaping are not permitted.
#   slow_links_test.sh STAGECRAFT SOURCE
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ranks=3 m=4 compute=300 transfer=100 mbit=100 # milliseconds; 1,250,000 bytes are 100 ms at 100 Mbit/s

delay='"type": "delay", "forward_ms": 100, "backward_input_ms": 100, "backward_weight_ms": 100, "parameters": 5'
cat > "$work/run.json" << JSON
{
  "model": {"family": "sequential", "layers": [
    {$delay, "features": 312500}, {$delay, "features": 312500}, {$delay, "features": 10}]},
  "data": {"type": "synthetic", "samples": 32, "validation_samples": 0, "shape": [16], "classes": 10},
  "loss": {"type": "cross_entropy"},
  "train_batch_size": $m, "train_micro_batch_size_per_gpu": 1, "train_steps": 4, "threads_per_rank": 1,
  "profiler": {"repeats": 3, "warmup_ms": 0},
  "pipeline": {"schedule": "1f1b", "warmup_extra": 2, "cuts": [1, 2]}
}
JSON

over_slow_links() {
  timeout -k 10 120 "$2/scripts/bench/netns.sh" "$ranks" "$mbit" "$1" train "$work/run.json" --set run_dir="$work/slow" > "$work/log" 2>&1
}
code=0
over_slow_links "$@" || code=$?
# A launch in which no rank begins gets a second try, for that is Open MPI in fresh namespaces. A run that has begun gets none.
if [ $code = 124 ] && ! grep -q '^Model: ' "$work/log"; then
  cat "$work/log"
  echo "no rank began within 120 s: once more"
  code=0
  over_slow_links "$@" || code=$?
fi
if [ $code != 0 ]; then
  cat "$work/log"
  exit $code
fi
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 \
  mpirun -np "$ranks" --oversubscribe "$1" train "$work/run.json" --set run_dir="$work/fast" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

python3 - "$work" $ranks $m $compute $transfer << 'PYTHON'
import json
import os
import sys

work, (ranks, m, compute, transfer) = sys.argv[1], map(int, sys.argv[2:])
slow, fast = ([json.loads(line) for line in open(f"{work}/{run}/metrics.jsonl")] for run in ("slow", "fast"))
for a, b in zip(slow, fast, strict=True):
    for key in ("step", "loss", "gradient_norm", "learning_rate"):
        assert a[key] == b[key], f"{key} is {a[key]} over slow links and {b[key]} without"
times = [line["ms"] for line in slow]
best, mean = min(times), sum(times) / len(times)
# Every micro-batch that passes a rank sends forwards and backwards: so long a step would take if nobody computed meanwhile.
apart = (m + ranks - 1) * (compute + 2 * transfer)
floor = (m + ranks - 1) * compute
print(f"fastest step {best:.1f} ms, mean {mean:.1f} ms; computing alone {floor} ms, computing and transfers one after the other {apart} ms")
if os.getloadavg()[0] > 2 * os.cpu_count():
    print("the machine is busy: times are not judged")
else:
    assert best < apart, "transfers are not overlapped"
assert mean >= floor, "layers took less than they were told to"
PYTHON
