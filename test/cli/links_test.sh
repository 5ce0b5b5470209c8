#!/usr/bin/env bash
# The command without the engine needs no LibTorch, MPI or CUDA.
#   links_test.sh BINARY
set -euo pipefail
needed=$(ldd "$1")
if grep -E 'torch|c10|mpi|cuda|nccl' <<< "$needed"; then
  echo "$1 links what only the engine needs, above" >&2
  exit 1
fi
