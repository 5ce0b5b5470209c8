#!/usr/bin/env bash
# Trains reference_FAMILY.json over 2 stages and again in Python PyTorch: losses within 1e-5 over all steps. Then with one loss
# changed: the comparison must notice.
#   pytorch_reference_test.sh STAGECRAFT PYTHON SOURCE_DIR FAMILY
set -euo pipefail
stagecraft=$1 python=$2 source=$3 family=$4
cd "$source"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
"$stagecraft" train "test/scripts/reference_$family.json" --set run_dir="$work/run" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$python" scripts/pytorch_reference.py "$work/run" --tolerance 1e-5 --json "$work/losses.json"
"$python" - "$work/run/metrics.jsonl" << 'CHANGE'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
lines[11]["loss"] += 1e-4
open(sys.argv[1], "w").writelines(json.dumps(line) + "\n" for line in lines)
CHANGE
if "$python" scripts/pytorch_reference.py "$work/run" --tolerance 1e-5 > "$work/log"; then
  echo "FAILED: a loss off by 1e-4 was not noticed"; cat "$work/log"; exit 1
fi
