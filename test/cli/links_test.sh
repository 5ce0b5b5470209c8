#!/usr/bin/env bash
# The command without the engine needs no LibTorch, MPI or CUDA.
#   links_test.sh BINARY
set -euo pipefail
# Names and folders alone: the address of a library is random, and may read "c10".
needed=$(ldd "$1" | sed 's/ (0x[0-9a-f]*)$//')
if grep -E 'torch|c10|mpi|cuda|nccl' <<< "$needed"; then
  echo "$1 links what only the engine needs, above" >&2
  exit 1
fi
