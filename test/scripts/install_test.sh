#!/usr/bin/env bash
# The installed tree works from any folder, moved, and without the environment it was built in; and projects outside of this tree
# build on it (examples/).
#   install_test.sh CMAKE BUILD_DIR SOURCE_DIR ENGINE
set -euo pipefail
cmake=$1 build=$2 source=$3 engine=$4
export CMAKE_GENERATOR=Ninja  # setup.sh installs it, and make is not on every machine
# Beside the build, not in /tmp: it is 700 MB with LibTorch.
work=$(mktemp -d "$build/install-test.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/first" > /dev/null
mv "$work/first" "$work/moved"
mkdir "$work/elsewhere"
cd "$work/elsewhere"
stagecraft() { env -i OMP_NUM_THREADS=1 "$work/moved/bin/stagecraft" "$@"; }

stagecraft --version
stagecraft plan --profile "$source/test/data/profiles/gpt_10_layers.json" --micro-batch-size 4 \
  --cluster "$work/moved/share/stagecraft/configs/clusters/laptop.json" -o plan.json > /dev/null
stagecraft check plan.json > /dev/null
for file in share/bash-completion/completions/stagecraft share/zsh/site-functions/_stagecraft; do
  [ -s "$work/moved/$file" ]
done
python3 "$source/test/scripts/public_headers.py" "$work/moved/include"
if [ "$engine" = ON ]; then
  stagecraft doctor
  # They find their own packages wherever they were moved, here with a Python that says what it was asked.
  # shellcheck disable=SC2016  # a script's
  printf '#!/bin/sh\n[ "$1" = -c ] || { cat "$PYTHONPATH/$2/__main__.py" > /dev/null && echo "$@"; }\n' > python
  chmod +x python
  for tool in capture images tokenize; do
    [ -x "$build/stagecraft-$tool" ]
    [ "$(STAGECRAFT_PYTHON=$PWD/python "$work/moved/bin/stagecraft-$tool" --help)" = "-m stagecraft_$tool --help" ]
  done
  stagecraft train "$work/moved/share/stagecraft/configs/quickstart_gpt.json" --set train_steps=2 \
    --set data.path="$source/test/data/text/shakespeare.txt" --set run_dir=run
  grep -q '"step": *2' run/metrics.jsonl
fi

# Where there is a compiler cache, they are in it, as the build itself is: below a folder of another name each time.
if command -v ccache > /dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=true
fi
# example FOLDER NAME [cmake arguments]: configured and built as a user would. Unoptimized, and each target as one source: what is tried
# here is that it builds.
example() {
  local name=$2
  { "$cmake" -S "$1" -B "$work/$name" -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_UNITY_BUILD=ON "${@:3}" > "$work/$name.log" &&
    "$cmake" --build "$work/$name" -j 2 >> "$work/$name.log"; } || { cat "$work/$name.log"; exit 1; }
}
refused() { if "$@" > refused.log 2>&1; then echo "worked, and should not: $*"; exit 1; fi; }
refused "$cmake" -S "$source/examples/own_schedule" -B "$work/none" -DCMAKE_PREFIX_PATH="$work/moved" -DCOMPONENT=engin
tr -s ' \n' '  ' < refused.log | grep -q 'no component "engin" here; it was installed with:'  # CMake wraps it, each version elsewhere

if [ "$engine" = ON ]; then
  # A LibTorch of another minor than the one that the archives were made with.
  mkdir -p other/{lib,include/{ATen/core,torch/headeronly}}
  touch other/lib/lib{c10,torch_cpu}.so other/include/ATen/core/Tensor.h
  printf '#define TORCH_VERSION_%s\n' 'MAJOR 2' 'MINOR 1' 'PATCH 5' > other/include/torch/headeronly/version.h
  refused "$cmake" -S "$source/examples/own_schedule" -B "$work/other" -DCMAKE_PREFIX_PATH="$work/moved" -DCOMPONENT=engine -DSTAGECRAFT_LIBTORCH="$PWD/other"
  tr -s ' \n' '  ' < refused.log | grep -q 'other is LibTorch "2.1.5", expected 2.[0-9]*: point STAGECRAFT_LIBTORCH at one'
fi

# A build tree that PATH leads to is no package, and says why.
PATH=$build:$PATH refused "$cmake" -S "$source/examples/own_schedule" -B "$work/unset"
tr -s ' \n' ' ' < refused.log | grep -q 'in a build tree: install it (cmake --install'

mine=$work/own_schedule/my_trainer
profile=(--profile "$source/test/data/profiles/gpt_10_layers.json" --micro-batch-size 4 --micro-batches 8
         --cluster "$source/configs/clusters/one-machine-4-pcie.json" --stages 4)
if [ "$engine" = ON ]; then component=engine; else component=planner; fi
example "$source/examples/own_schedule" own_schedule -DCOMPONENT=$component
refused "$mine" plan "${profile[@]}" --schedule eager_1f
grep -q 'did you mean "eager_1f1b"?' refused.log
# of_page N: the N-th block of the gallery's page, word for word.
ln -s "$source/configs" "$source/test" "$source/examples" .
of_page() {
  awk -v n="$1" '/^```/ { inside = 0 } inside { print } /^```bash/ { inside = ++block == n }' "$source/docs/gallery/own_code.md" > "block$1.sh"
  PATH=${mine%/*}:$PATH bash -eu "block$1.sh" > "block$1.log" || { cat "block$1.log"; exit 1; }
}
of_page 1
grep -q eager_1f1b block1.log
grep -q eager_1f1b eager.svg
[ "$engine" = ON ] || exit 0

text=(--set data.path="$source/test/data/text/shakespeare.txt")
"$mine" train "$source/configs/quickstart_gpt.json" "${text[@]}" --set train_steps=2 --set run_dir=eager --set pipeline.schedule=eager_1f1b
grep -q '"step": *2' eager/metrics.jsonl

example "$source/examples/own_block" own_block
"$work/own_block/check_layers"
mine=$work/own_block/my_trainer
of_page 2
grep -q rms_norm block2.log
"$mine" schema run > schema.json
grep -q '"const": "llama"' schema.json
refused "$mine" train "$source/examples/own_block/run.json" "${text[@]}" --set model.heds=3
grep -q '/model/heds: unknown key; did you mean "heads"?' refused.log
export OMP_NUM_THREADS=1
config=$source/examples/own_block/run.json
"$mine" train "$config" "${text[@]}" --set run_dir=one --set pipeline.stages=1 --set 'pipeline.cuts=[]'
mpirun --allow-run-as-root --oversubscribe -np 2 "$mine" train "$config" "${text[@]}" --set run_dir=two
"$mine" report two > /dev/null
# Equal to the bit: all digits of all losses.
losses() { grep -o '"loss": *[^,}]*' "$1/metrics.jsonl"; }
[ "$(losses one | wc -l)" -ge 20 ]
diff <(losses one) <(losses two)
echo "own_block: the losses of 2 processes are those of one, to the last digit"

example "$source/examples/own_data" own_data
mine=$work/own_data/my_trainer
config=$source/examples/own_data/run.json
points=(--set data.path="$source/examples/own_data/points.csv")
"$mine" train "$config" "${points[@]}" --set run_dir=csv_one --set pipeline.stages=1 --set train_steps=20
"$mine" train "$config" "${points[@]}" --set run_dir=csv_two --set train_steps=20
diff <(losses csv_one) <(losses csv_two)
# Where the data lies may differ when a run goes on; what it is may not.
cp "$source/examples/own_data/points.csv" other.csv
"$mine" train "$config" --set data.path=other.csv --set run_dir=csv_two --set train_steps=30 --resume
echo "1,2,x" > bad.csv
refused "$mine" train "$config" --set data.path=bad.csv --set run_dir=bad
grep -q 'data/path: bad.csv, line 1: expected numbers and commas' refused.log
refused "$mine" train "$config" "${points[@]}" --set loss.dleta=1 --set run_dir=bad
grep -q '/loss/dleta: unknown key; did you mean "delta"?' refused.log

# The guide's smallest project, word for word.
python3 - "$source/docs/guides/library.md" "$work/guide" <<'PYTHON'
import re, sys
from pathlib import Path
page, folder = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
folder.mkdir()
for language, name in (("cmake", "CMakeLists.txt"), ("cpp", "main.cpp"), ("json", "run.json")):
    (folder / name).write_text(re.search(rf"```{language}\n(.*?)```", page, re.S)[1])
PYTHON
example "$work/guide" guide_build
mpirun --allow-run-as-root --oversubscribe -np 2 "$work/guide_build/my_trainer" train "$work/guide/run.json" --set train_steps=5 --set run_dir=guide
grep -q '"step": *5' guide/metrics.jsonl
