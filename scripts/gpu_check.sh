#!/usr/bin/env bash
# What there is to see on a machine with GPUs, in one command and about ten minutes: are runs on a GPU equal to the oracle there, over the
# host's memory and over NCCL; does training work; how long does a step take. Changes no setting of a GPU; needs no network.
#
#   scripts/gpu_check.sh [--build DIR] [--json FILE] [--rehearse]
#
# --build: a build folder made elsewhere with the same LibTorch (default: build, made here if it is not there). Each part has a time limit and
# says ok, FAILED or skipped; what it printed is shown where it failed. Exit code 0 where nothing failed, 1 otherwise, 77 without a GPU.
# --rehearse: the same commands where there is no GPU, so that a mistake in them shows: what needs one is skipped, training is a dry run.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

build=build json= rehearse= turn=0 python=${PYTHON:-python3}
while (($#)); do
  case "$1" in
    --build) build=$2; shift 2 ;;
    --json) json=$2; shift 2 ;;
    --rehearse) rehearse=1; shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_check.sh: unknown argument $1 (--build DIR, --json FILE, --rehearse)" >&2; exit 2 ;;
  esac
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
# Several ranks of one machine over NCCL's sockets: the loopback interface is left out unless it is asked for.
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}

if ! [ -x "$build/stagecraft" ] || ! [ -x "$build/test/engine/test_gpu" ]; then
  echo "gpu_check: building in $build"
  { cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release && cmake --build "$build" --target stagecraft test_gpu; } > "$work/build" 2>&1 ||
    { tail -20 "$work/build"; exit 1; }
fi
"$build/stagecraft" doctor || exit 1
gpus=$("$build/stagecraft" doctor --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["cuda"]["devices"]))')
if [ "$gpus" = 0 ] && [ -z "$rehearse" ]; then echo "gpu_check: skipped, no GPU here"; exit 77; fi

cuda=(--set device=cuda --set 'pipeline.cuts=[]')
nccl=(--set comms.backend=nccl)
if [ -n "$rehearse" ]; then cuda=(--dry-run --set 'pipeline.cuts=[]' --set profiler.repeats=2 --set profiler.warmup_ms=0) nccl=(); fi
failed=0
results=()
# part NAME SECONDS COMMAND...: runs it, shows its last line.
part() {
  local name=$1 limit=$2 begin=$SECONDS verdict code
  shift 2
  if command -v "$1" > /dev/null; then
    timeout -k 10 "$limit" "$@" > "$work/out" 2>&1
    code=$?
  else
    echo "skipped: no $1 here" > "$work/out"
    code=77
  fi
  case $code in
    0) verdict=ok ;;
    77) verdict=skipped ;;
    124 | 137) verdict="FAILED: not over after $limit s" ;;
    *) verdict="FAILED: exit code $code" ;;
  esac
  printf '%-28s %-10s %4d s  %s\n' "$name" "$verdict" $((SECONDS - begin)) "$(grep -v '^-*$' "$work/out" | tail -1 | cut -c1-110)"
  case $name in bench,*) sed 's/^/    /' "$work/out" ;; esac
  [[ $verdict != FAILED* ]] || { failed=1; tail -25 "$work/out" | sed 's/^/    /'; }
  results+=("$(NAME=$name VERDICT=$verdict TOOK=$((SECONDS - begin)) python3 -c 'import json, os, sys
print(json.dumps({"part": os.environ["NAME"], "result": os.environ["VERDICT"], "seconds": int(os.environ["TOOK"]), "output": sys.stdin.read()[-4000:]}))' < "$work/out")")
}

part "equality, threads" 240 "$build/test/engine/test_gpu" local
part "equality, staged, 2 ranks" 120 mpirun --oversubscribe -np 2 "$build/test/engine/test_gpu" staged
part "equality, nccl, 2 ranks" 180 mpirun --oversubscribe -np 2 "$build/test/engine/test_gpu" nccl 197
part "equality, graphs" 240 "$build/test/engine/test_gpu" local 97 graphs
part "equality, nccl, graphs" 180 mpirun --oversubscribe -np 2 "$build/test/engine/test_gpu" nccl 397 graphs
part "equality, nccl, 4 ranks" 180 mpirun --oversubscribe -np 4 "$build/test/engine/test_gpu" nccl 397
part "equality, nccl, replicas" 180 mpirun --oversubscribe -np 3 "$build/test/engine/test_gpu" nccl 37 replicas
for stages in 1 2 4; do
  part "bench_gpt, $stages stages" 120 "$build/stagecraft" train configs/bench_gpt.json "${cuda[@]}" --set pipeline.stages=$stages --set "run_dir=$work/stages$stages"
  part "bench_gpt bf16, $stages stages" 120 "$build/stagecraft" train configs/bench_gpt.json "${cuda[@]}" --set bf16.enabled=true \
    --set pipeline.stages=$stages --set "run_dir=$work/bf16-$stages"
done
for graphs in false true false true; do  # small layers, where launching counts; in turns
  part "small layers, graphs $graphs" 60 "$build/stagecraft" train configs/bench_gpt.json "${cuda[@]}" --set "cuda.graphs=$graphs" \
    --set model.width=128 --set pipeline.stages=1 --set train_steps=60 --set "run_dir=$work/graphs-$((++turn))"
done
part "bench_vgg, 1 stage" 120 "$build/stagecraft" train configs/bench_vgg.json "${cuda[@]}" --set pipeline.stages=1 --set "run_dir=$work/vgg"
part "bench_gpt, nccl, 2 ranks" 120 mpirun --oversubscribe -np 2 bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$0" "$@"' \
  "$build/stagecraft" train configs/bench_gpt.json "${cuda[@]}" "${nccl[@]}" --set pipeline.stages=2 --set "run_dir=$work/nccl"
part "bench_gpt, nccl, 2 replicas" 120 mpirun --oversubscribe -np 2 bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$0" "$@"' \
  "$build/stagecraft" train configs/bench_gpt.json "${cuda[@]}" "${nccl[@]}" --set pipeline.stages=1 --set 'pipeline.widths=[2]' --set "run_dir=$work/replicas"
bench() { # NAME SECONDS ARGUMENTS...: beside PyTorch, where there is a python (PYTHON, python3) that has it
  local name=$1 limit=$2
  shift 2
  if "$python" -c 'import torch' 2> /dev/null; then part "$name" "$limit" "$python" scripts/bench/gpu.py --binary "$build/stagecraft" "$@"; fi
}
if [ -n "$rehearse" ]; then
  bench "bench, rehearsed" 300 --device cpu --config configs/bench_gpt.json --rows graphs --pairs 1 --steps 1 --repeats 1
else
  bench "bench, GPT-2 small" 300 --pairs 3
  bench "bench, GPT-2 medium" 400 --pairs 3 --config configs/gpt2_medium.json --rows plain compiled stages2
  bench "bench, small layers" 200 --pairs 3 --config configs/bench_gpt.json --rows plain launched graphs
  bench "bench, VGG, TF32" 200 --pairs 3 --config configs/bench_vgg.json --rows plain compiled --tf32
fi
if command -v compute-sanitizer > /dev/null; then
  part "compute-sanitizer" 240 compute-sanitizer --error-exitcode 1 "$build/test/engine/test_gpu" local 1999
fi

if [ -n "$json" ]; then
  printf '%s\n' "${results[@]}" | python3 -c 'import json, sys
print(json.dumps([json.loads(line) for line in sys.stdin], indent=2))' > "$json"
fi
exit $failed
