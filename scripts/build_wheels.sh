#!/usr/bin/env bash
# Makes the wheel stagecraft-planner and says what it needs of the machine it is installed on.
#
#   scripts/build_wheels.sh [-o DIR]     -o: where it goes (dist/)
#
# Minutes of compiling, unless the compiler cache has it. pip brings scikit-build-core, which builds it, from PyPI; auditwheel comes from
# there, too.
set -euo pipefail

output=dist
while [ $# -gt 0 ]; do
  case "$1" in
    -o) output=${2:?-o needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "build_wheels.sh: unknown argument $1 (-o DIR)" >&2; exit 2 ;;
  esac
done
mkdir -p "$output"
output=$(cd "$output" && pwd)
cd "$(dirname "$0")/.."
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
stagecraft_make_tools || { echo "build_wheels.sh: there is no python3 with venv here (apt-get install python3-venv)" >&2; exit 2; }
python=$stagecraft_tools/bin/python
"$python" -c "import auditwheel" 2> /dev/null || "$python" -m pip install -q "auditwheel==$stagecraft_auditwheel"

export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip wheel -q --no-deps -w "$work" -C build-dir="$PWD/build-wheel" python/planner_wheel
wheel=$(echo "$work"/stagecraft_planner-*.whl)

# What it needs of glibc, from what its programs import; "no glibc" of one that is static.
"$python" -m zipfile -e "$wheel" "$work/inside"
program=$work/inside/stagecraft_planner/bin/stagecraft
glibc=$(objdump -T "$program" 2> /dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 || true)
bytes=$(stat -c %s "$wheel")
[ "$bytes" -lt 10000000 ] || { echo "build_wheels.sh: ${wheel##*/} has $bytes bytes, and must stay below 10 MB" >&2; exit 1; }
mv "$wheel" "$output/"
wheel=$output/${wheel##*/}
"$python" -m auditwheel show "$wheel" || echo "auditwheel: no verdict, exit code $?"
echo "$wheel: $((bytes / 1000)) kB, the program $(($(stat -c %s "$program") / 1000)) kB, needs ${glibc:-no glibc}"
