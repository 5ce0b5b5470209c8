#!/usr/bin/env bash
# The installed tree works from any folder, moved, and without the environment it was built in.
#   install_test.sh CMAKE BUILD_DIR SOURCE_DIR ENGINE
set -euo pipefail
cmake=$1 build=$2 source=$3 engine=$4
# Beside the build, not in /tmp: it is 650 MB with LibTorch.
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
for made in bash-completion/completions/stagecraft zsh/site-functions/_stagecraft man/man1/stagecraft.1; do
  [ -s "$work/moved/share/$made" ] || { echo "share/$made is missing" >&2; exit 1; }
done
[ "$engine" = ON ] || exit 0
stagecraft doctor
stagecraft train "$work/moved/share/stagecraft/configs/quickstart_gpt.json" --set train_steps=2 \
  --set data.path="$source/test/data/text/shakespeare.txt" --set run_dir=run
grep -q '"step": *2' run/metrics.jsonl
