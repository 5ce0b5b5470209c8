#!/bin/sh
# The first minutes on a machine with GPUs: what only hardware can say, the most valuable first. Part of the bundle that
# scripts/gpu_bundle.sh makes; runs there, in the bundle's folder.
#
#   ./gpu_first.sh [--list] [--only NAME] [--seconds 420] [--out DIR] [--second | --machine N | --hosts A,B]
#
# Needs an NVIDIA driver and a python3 that imports torch of the minor named in MANIFEST.json; no network, MPI or compiler. Each part has its own
# limit, and its line comes at once, here and in DIR/results.jsonl; where a part hangs, DIR has its stacks. Exit code 0: what ran
# has passed; 1: something failed or was not over in time; 2: it cannot begin; 77: nothing failed, and there is no device.
exec "${PYTHON:-python3}" "$(dirname "$0")/scripts/gpu/first.py" "$@"
