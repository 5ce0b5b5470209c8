#!/usr/bin/env bash
# Are all libraries here, which driver and device, what is this build? For scripts/gpu/parts.py, in the bundle's folder.
set -uo pipefail
files=(bin/*)
missing=$(ldd "${files[@]}" 2>&1 | grep "not found" | sort -u)
[ -z "$missing" ] || { printf 'this machine lacks:\n%s\n' "$missing"; exit 1; }
ldd bin/stagecraft | grep -E 'lib(mpi|fmt|spdlog|torch_cpu|nccl|cudart|stdc\+\+)\.'
facts=$(bin/stagecraft doctor) || exit 1
echo "$facts"
! grep -q '^ *GPU .*none' <<< "$facts" || { echo "no device"; exit 77; }
command -v nvidia-smi > /dev/null || { echo "no nvidia-smi here"; exit 0; }
nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,compute_mode,mig.mode.current --format=csv
nvidia-smi topo -m || true  # not in all containers
