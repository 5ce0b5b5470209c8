#!/usr/bin/env bash
# Profiles a PyTorch model, plans with the profile, and splits the model where the plan says: PyTorch's own pipeline() must take the
# split and make the plan's stages. Then wrong inputs.
#   profile_torch_test.sh STAGECRAFT PYTHON SOURCE_DIR
set -euo pipefail
stagecraft=$1 python=$2 source=$3
cd "$source"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tool=("$python" scripts/profile_torch.py)
model=test/scripts/torch_model.py

"${tool[@]}" profile $model:convnet --input 1,28,28 --micro-batch 2 4 --loss cross_entropy --repeats 3 -o "$work/profile.json" > "$work/table"
"$stagecraft" plan --profile "$work/profile.json" --cluster configs/clusters/one-machine-4-pcie.json --micro-batch-size 4 --micro-batches 4 \
  --stages 3 -o "$work/plan.json" > /dev/null
"$stagecraft" check "$work/plan.json" > /dev/null
"${tool[@]}" split "$work/plan.json" "$work/profile.json" > "$work/split"
"${tool[@]}" split "$work/plan.json" "$work/profile.json" --json > "$work/split.json"
"${tool[@]}" profile $model:tokens --input 12 --input-dtype int64 --below 50 --micro-batch 3 --loss cross_entropy --optimizer momentum --repeats 2 \
  -o "$work/tokens.json" > /dev/null

"$python" - "$work" << 'CHECK'
import json, sys
from pathlib import Path
sys.path.insert(0, "test/scripts")
import torch
from torch.distributed.pipelining import SplitPoint, pipeline
from torch_model import convnet

work = Path(sys.argv[1])
profile = json.loads((work / "profile.json").read_text())
assert [m["micro_batch"] for m in profile["measurements"]] == [2, 4]
rows = {row["name"]: row for row in profile["measurements"][1]["layers"]}
assert list(rows)[:3] == ["features.0", "features.1", "features.2"] and list(rows)[-1] == "loss"

def has(name, **wanted):
    for key, value in wanted.items():
        assert rows[name][key] == value, (name, key, rows[name][key], value)

has("features.0", parameter_bytes=4 * (8 * 9 + 8), output_bytes=4 * 4 * 8 * 28 * 28, keeps_input=True, keeps_output=False, kept_for_input_bytes=0)
assert rows["features.0"]["backward_input"]["median_ms"] == 0, "the data has no gradient"
has("features.1", parameter_bytes=4 * 16, buffer_bytes=4 * 16 + 8, keeps_input=True)
has("features.2", parameter_bytes=0, keeps_input=False, keeps_output=True, kept_for_input_bytes=0)
has("features.3", keeps_input=True, kept_for_input_bytes=8 * 4 * 8 * 14 * 14)  # the indices of the largest
has("flatten", output_is_input=True, kept_for_input_bytes=0)
has("classifier.0", parameter_bytes=4 * (16 * 49 * 64 + 64), keeps_input=True)
has("loss", output_bytes=0)
assert rows["classifier.0"]["backward_weight"]["median_ms"] > 0 and rows["classifier.0"]["step"]["median_ms"] > 0
tokens = json.loads((work / "tokens.json").read_text())
assert tokens["optimizer_bytes_per_parameter_byte"] == 1
assert [row["backward_input"]["median_ms"] > 0 for row in tokens["measurements"][0]["layers"]] == [False, True, True, True]

split = json.loads((work / "split.json").read_text())
text = {}
exec((work / "split").read_text().replace("pipe = ", "# "), text)
assert list(text["split_spec"]) == split["split_before"] and len(split["stages"]) == 3, split
pipe = pipeline(convnet(), mb_args=(torch.randn(4, 1, 28, 28),), split_spec=text["split_spec"])
assert pipe.num_stages == 3
names = [name for name in rows if name != "loss"]
bounds = [0, *(names.index(cut) for cut in split["split_before"]), len(names)]
for stage, (first, last) in enumerate(zip(bounds, bounds[1:])):
    assert split["stages"][stage]["first"] == names[first] and split["stages"][stage]["last"] == names[last - 1]
    wanted = sum(rows[name]["parameter_bytes"] for name in names[first:last])
    made = sum(p.numel() * p.element_size() for p in pipe.get_stage_module(stage).parameters())
    assert made == wanted, (stage, made, wanted)
CHECK

refused() {
  local what=$1 rc=0
  shift
  "${tool[@]}" "$@" > "$work/log" 2>&1 || rc=$?
  if [ "$rc" != 2 ] || ! grep -q -- "$what" "$work/log" || grep -q Traceback "$work/log"; then
    echo "FAILED: $*: exit code $rc, expected 2 and \"$what\""; cat "$work/log"; exit 1
  fi
}
refused "has no 'absent'" profile $model:absent --input 1,28,28 --micro-batch 1
refused "without arguments" profile $model:needs_arguments --input 4 --micro-batch 1
refused "layer 'classifier.0' does not take (1, 256)" profile $model:convnet --input 1,16,16 --micro-batch 1 -o "$work/none.json"
refused "layer '0' returns a tuple" profile $model:two_outputs --input 3,4 --micro-batch 1 -o "$work/none.json"
refused "expected an nn.Sequential" profile torch.nn:Identity --input 4 --micro-batch 1
refused "--below" profile $model:tokens --input 12 --input-dtype int64 --micro-batch 1
refused "no such folder" profile $model:convnet --input 1,28,28 --micro-batch 1 -o "$work/no/profile.json"
refused "not a plan" split "$work/profile.json" "$work/profile.json"
refused "expected the profile that the plan was made from" split "$work/plan.json" "$work/tokens.json"
[ ! -e "$work/none.json" ] || { echo "FAILED: a refused profile was written"; exit 1; }
