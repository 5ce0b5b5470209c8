#!/bin/sh
# The first minutes on a machine with GPUs: what only hardware can say, the most valuable first. Part of the bundle that
# scripts/gpu_bundle.sh makes; runs there, in the bundle's folder.
#
#   ./gpu_first.sh [--list] [--only NAME] [--seconds 420] [--out DIR] [--second | --machine 4|8 | --hosts A,B [--per-host 4|8]]
#   ./gpu_first.sh --env COMMAND...       a command of one's own, as the parts' are started
#
# Needs an NVIDIA driver and a python3 (PYTHON names another) that imports torch of the minor and for the CUDA named in MANIFEST.json;
# no network, MPI or compiler. Each part has its own limit, and its line comes at once, here and in DIR/results.jsonl; where a part
# hangs, DIR has its stacks. Exit code 0: what ran has passed; 1: something failed or was not over in time; 2: it cannot begin;
# 3: nothing ran; 77: nothing failed, and there is no device; 128 + n: stopped by signal n.
here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-python3}
fail() { echo "gpu_first: $*" >&2; exit 2; }
command -v "$python" > /dev/null || fail "no $python here; PYTHON=... names another"
[ -e "$here/MANIFEST.json" ] || fail "no MANIFEST.json in $here: make a bundle by scripts/gpu_bundle.sh, unpack it and run the gpu_first.sh in it"
# A damaged program may say nothing and end well. So this one has to say a word.
said=$("$python" "$here/scripts/gpu/check.py" 2>&1 | tail -n 1)
case $said in
  whole) exec "$python" "$here/scripts/gpu/first.py" "$@" ;;
  "gpu_first: "*) echo "$said" >&2; exit 2 ;;
  *) fail "$python $here/scripts/gpu/check.py does not end well: not as packed, or no Python of 3.10 or newer ($said)" ;;
esac
