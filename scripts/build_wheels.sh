#!/usr/bin/env bash
# Makes the wheels and says what they need of the machine they are installed on.
#
#   scripts/build_wheels.sh [-o DIR] [--build DIR] [NAME...]
#
#   NAME      stagecraft, stagecraft-planner (both)
#   -o        where they go (dist/)
#   --build   what stagecraft is made of (build/): a build folder, in which this script builds what is missing. Its torch is the wheel's.
#
# stagecraft-planner is compiled anew: minutes, unless the compiler cache has it. pip brings scikit-build-core, which makes wheels, from
# PyPI; auditwheel comes from there, too.
set -euo pipefail

output=dist build=build names=()
while [ $# -gt 0 ]; do
  case "$1" in
    -o) output=${2:?-o needs a folder}; shift 2 ;;
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    stagecraft | stagecraft-planner) names+=("$1"); shift ;;
    *) echo "build_wheels.sh: unknown argument $1 (-o DIR, --build DIR, stagecraft, stagecraft-planner)" >&2; exit 2 ;;
  esac
done
[ "${#names[@]}" -gt 0 ] || names=(stagecraft stagecraft-planner)
mkdir -p "$output"
output=$(cd "$output" && pwd)
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
stagecraft_make_tools || { echo "build_wheels.sh: there is no python3 with venv here (apt-get install python3-venv)" >&2; exit 2; }
tools=$stagecraft_tools/bin/python
"$tools" -c "import auditwheel" 2> /dev/null || "$tools" -m pip install -q "auditwheel==$stagecraft_auditwheel"

export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
work=$(mktemp -d)
# A path without dots: it becomes part of a setting's name.
staging="build-wheel-files"
trap 'rm -rf "$work" "$staging"' EXIT

make_stagecraft() {
  local torch python
  torch=$(readlink -f "$build/libtorch-include/ATen") && [ -d "$build/python" ] || {
    echo "build_wheels.sh: $build has no module for Python: scripts/setup.sh && cmake --preset release" >&2
    exit 2
  }
  torch=${torch%/include/ATen}
  python=$torch/../../../../bin/python
  cmake --build "$build" --target stagecraft_python stagecraft_planner
  rm -rf "$staging"
  cmake --install "$build" --component wheel --strip --prefix "$staging" > /dev/null
  STAGECRAFT_LIBTORCH=$torch "$python" -m pip wheel -q --no-deps -w "$work" -C wheel.cmake=false -C wheel.platlib=true -C "wheel.force-include.$staging=." .
}

make_stagecraft-planner() {
  "$tools" -m pip wheel -q --no-deps -w "$work" -C build-dir="$PWD/build-wheel" python/planner_wheel
}

# What it needs of glibc, from what its programs import; "no glibc" of those that are static.
say_needs() {
  local wheel=$1 inside=$work/inside programs glibc
  rm -rf "$inside"
  "$tools" -m zipfile -e "$wheel" "$inside"
  mapfile -t programs < <(find "$inside" \( -name '*.so' -o -path '*/bin/*' \) -type f)
  glibc=$(objdump -T "${programs[@]}" 2> /dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 || true)
  "$tools" -m auditwheel show "$wheel" || echo "auditwheel: no verdict, exit code $?"
  # Nothing of this machine's folders.
  objdump -p "${programs[@]}" 2> /dev/null | grep -E 'NEEDED|RUNPATH|RPATH' | sort -u || true
  echo "$wheel: $(($(stat -c %s "$wheel") / 1000)) kB, unpacked $(($(du -sk "$inside" | cut -f1))) kB, needs ${glibc:-no glibc}"
}

for name in "${names[@]}"; do
  "make_$name"
  wheel=$(echo "$work/${name//-/_}"-[0-9]*.whl)
  bytes=$(stat -c %s "$wheel")
  [ "$bytes" -lt 10000000 ] || { echo "build_wheels.sh: ${wheel##*/} has $bytes bytes, and must stay below 10 MB" >&2; exit 1; }
  mv "$wheel" "$output/"
  say_needs "$output/${wheel##*/}"
done
