#!/usr/bin/env bash
# Prose, format and lint of C++, Python and shell, as CI does it.
#   scripts/lint.sh [--fix] [--tidy | --tidy-plain] [--includes]
#     --fix: formats in place, and mends what ruff can; --tidy: clang-tidy as well; --tidy-plain: the same on what needs no LibTorch, which needs no build; --includes:
#     each source compiles without those beside it, which unity builds hide. Minutes for all sources, seconds when little changed.
# The tools come by scripts/setup.sh --lint. clang-tidy reads a folder as one source, so that its headers are parsed once. The
# sources with LibTorch need a configured build, which knows where LibTorch, MPI, CUDA and NCCL are; without one they are left out.
# --includes leaves them out always: each would parse ATen for many seconds, and the dev preset builds them without unity.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

fix=0
tidy=0
with_libtorch=1
includes=0
for argument in "$@"; do
  case "$argument" in
    --fix) fix=1 ;;
    --tidy) tidy=1 ;;
    --tidy-plain) tidy=1 with_libtorch=0 ;;
    --includes) includes=1 ;;
    *) echo "lint.sh: unknown argument $argument (--fix, --tidy, --tidy-plain, --includes)" >&2; exit 2 ;;
  esac
done

python3 scripts/prose.py
# With the Catch2 of one system they compile, with that of another they do not.
if git grep -nE '<catch2/|Catch::(Matchers::)?Contains\b' -- '*.cpp' '*.h' ':!test/support/catch*'; then
  echo "lint.sh: include test/support/catch.h, and match texts with Catch::Matchers::ContainsSubstring: Catch2 2 and 3 both have those" >&2
  exit 1
fi
needed() { stagecraft_tool "$1" || { echo "lint.sh: no $1 of the version in scripts/environment.sh; run scripts/setup.sh --lint" >&2; exit 2; }; }
# What was fine once, with the same headers and rules, is not checked again: it leaves a seal here.
sealed=$stagecraft_cache/tidy
mkdir -p "$sealed"
format=$(needed clang-format)
mapfile -t sources < <(git ls-files '*.h' '*.cpp' ':!third_party' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if [ "$fix" = 1 ]; then
  "$format" -i "${sources[@]}"
else
  "$format" --dry-run -Werror "${sources[@]}"
fi
echo "lint: format of ${#sources[@]} files is right, says $format"

ruff=$(needed ruff)
export RUFF_CACHE_DIR=$stagecraft_cache/ruff
mapfile -t python < <(git ls-files '*.py' | while read -r f; do [ ! -e "$f" ] || echo "$f"; done)
if [ "$fix" = 1 ]; then
  "$ruff" format -q "${python[@]}"
  "$ruff" check -q --fix "${python[@]}"
else
  "$ruff" format -q --diff "${python[@]}"
  "$ruff" check -q "${python[@]}"
fi
echo "lint: ruff has nothing to say of ${#python[@]} files"

mypy=$(needed mypy)
"$mypy" --no-error-summary --cache-dir "$stagecraft_cache/mypy" python
# What users import, as --strict has it, whatever those packages use of others.
"$mypy" --strict --follow-imports silent --no-error-summary --cache-dir "$stagecraft_cache/mypy-strict" python/stagecraft python/stagecraft_planner
# Scripts say fewer types of their own: what they do with those they have. A run for each folder: names of files are theirs alone.
for folder in scripts scripts/bench scripts/campaigns scripts/docs scripts/gpu; do
  MYPYPATH=$folder:scripts:scripts/bench:test/scripts "$mypy" --config-file= --check-untyped-defs --ignore-missing-imports --follow-imports silent \
    --disable-error-code var-annotated --disable-error-code union-attr --no-error-summary --cache-dir "$stagecraft_cache/mypy-scripts" "$folder"/*.py
done
echo "lint: mypy has nothing to say of python/ and scripts/"

shellcheck=$(needed shellcheck)
mapfile -t shell < <({ git grep -lE '^#!.*\b(ba|da)?sh$'; git ls-files '*.sh'; } | sort -u | while read -r f; do [ ! -e "$f" ] || echo "$f"; done)
seal=$sealed/$({ "$shellcheck" --version; cat .shellcheckrc "${shell[@]}"; } | sha256sum | cut -c1-32)
if ! [ -e "$seal" ]; then
  "$shellcheck" "${shell[@]}"
  touch "$seal"
fi
echo "lint: shellcheck has nothing to say of ${#shell[@]} files"

[ "$tidy$includes" != 00 ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mapfile -t sources < <(git ls-files 'base/*.cpp' 'schedules/*.cpp' 'partitioner/*.cpp' 'engine/records/*.cpp' 'cli/*.cpp' \
  ':!cli/engine_*' ':!cli/check_layers.cpp' ':!cli/doctor.cpp' ':!cli/profile.cpp' ':!cli/train.cpp')
# with_headers FILES...: the files and all our headers that they reach.
with_headers() {
  local -A reached=()
  local file next
  while [ $# -gt 0 ]; do
    for file in "$@"; do reached[$file]=1; done
    mapfile -t next < <(grep -hoP '^#include "\K[^"]+' "$@" | sort -u | while read -r file; do [ "${reached[$file]-}" ] || [ ! -e "$file" ] || echo "$file"; done)
    set -- "${next[@]}"
  done
  printf '%s\n' "${!reached[@]}" | sort
}
# seal_of CHECK FILES...: the path of the seal.
seal_of() { echo "$sealed/$({ echo "$@"; with_headers "${@:2}" | xargs cat .clang-tidy; } | sha256sum | cut -c1-32)"; }
export work sealed
export -f seal_of with_headers

if [ "$includes" = 1 ]; then
  # As a build compiles them, with its precompiled header; no code is made.
  for build in build build-planner; do
    [ ! -e $build/CMakeFiles/stagecraft_precompiled_plain.dir/cmake_pch.hxx.gch ] || break
  done
  compile=$(grep -s -o '"command": "[^"]* -o [^"]*/precompiled_plain.cpp"' "$build/compile_commands.json" | sed 's/^"command": "//; s/ -o .*//') ||
    { echo "lint.sh: --includes needs what a build has made of the headers: cmake --preset planner && cmake --build --preset planner" >&2; exit 2; }
  compile+=" -I$PWD -isystem $PWD/third_party -fsyntax-only"
  export compile
  alone() {  # SEAL SOURCE
    local words
    read -ra words <<< "$compile"
    "${words[@]}" -DSTAGECRAFT_VERSION='""' "$2" && touch "$1"
  }
  export -f alone
  # shellcheck disable=SC2016  # the inner shell's
  python3 scripts/seals.py "$sealed" "${compile//"$PWD"/.}" "${sources[@]}" | xargs -r -n 2 -P "$(nproc)" bash -c 'alone "$@"' alone ||
    { echo "lint.sh: a source does not compile by itself, above" >&2; exit 1; }
  echo "lint: each of ${#sources[@]} files compiles by itself"
fi

[ "$tidy" = 1 ] || exit 0
clang_tidy=$(needed clang-tidy)
tidy_version=$("$clang_tidy" --version)
export clang_tidy tidy_version
checked=${#sources[@]}
with_torch=()
libtorch=$(grep -s -oh -- '-isystem [^ ]*' build/compile_commands.json | sort -u | tr '\n' ' ' || true)
case "$libtorch" in
  *libtorch-include*)
    without=()  # what the build leaves out
    [[ $libtorch == */nccl/* ]] || without=(':!engine/device/cuda/*' ':!engine/transport/nccl/*')
    mapfile -t with_torch < <(git ls-files '*.cpp' ':!test/*' ':!examples/*' ':!python/libraries/*' "${without[@]}" | grep -vxFf <(printf '%s\n' "${sources[@]}"))
    ;;
  *)
    [ "$with_libtorch" = 0 ] || echo "lint: build/ is not configured with LibTorch; clang-tidy leaves out the sources that include it"
    ;;
esac
[ "$with_libtorch" = 1 ] || with_torch=()

# tidy FILES...: silent, or everything clang-tidy says. Where a folder does not compile as one source (two files have a helper of the same
# name), halves of it are read. FMT_CONSTEVAL: clang 23 does not take what fmt before version 11 computes at compile time; the build's
# compiler does, and checks format strings.
tidy() {
  local seal unit said include half=$(($# / 2)) worst=0
  seal=$(seal_of "$tidy_version $system" "$@")
  [ ! -e "$seal" ] || return 0
  unit=$work/${seal##*/}.cpp
  printf '#include "%s"\n' "$@" > "$unit"
  read -ra include <<< "$system"
  if said=$("$clang_tidy" --quiet --config-file=.clang-tidy --checks=-bugprone-suspicious-include --warnings-as-errors='*' \
    "$unit" -- -std=c++20 -fbracket-depth=1024 -I"$PWD" -isystem "$PWD/third_party" "${include[@]}" -DSTAGECRAFT_VERSION='""' -DSTAGECRAFT_ENGINE_INTERFACE='""' -DSTAGECRAFT_MPI_INTERFACE='""' -DOMPI_SKIP_MPICXX -DFMT_CONSTEVAL= 2>&1); then
    touch "$seal"
  elif [ $# -gt 1 ] && [[ $said == *clang-diagnostic-error* ]]; then
    tidy "${@:1:half}" || worst=1
    tidy "${@:half+1}" || worst=1
    [ "$worst" = 1 ] || touch "$seal"
    return "$worst"
  else
    printf '%s\n' "$said"
    return 1
  fi
}
export -f tidy

# tidy_folders SYSTEM FILES...: folder by folder, with LibTorch's include folders as SYSTEM, or none. Small ones with LibTorch are
# read together: its headers alone take most of their time. (What is in `none` has the names of its twin in `cuda`, and what the
# planner has for an engine those of the engine's verbs.)
tidy_folders() {
  export system=$1
  shift
  printf '%s\n' "$@" | awk -v together="$system" '{ folder = $0; sub(/no_engine_[^\/]*$/, "none/", folder); sub("/[^/]*$", "", folder); of[folder] = of[folder] " " $0; ++size[folder] }
    END {
      for (f in of) {
        unit = f
        if (together && size[f] < 10 && f ~ /^(engine|models)\// && f !~ /\/none$/) sub("/.*", "/", unit)
        files[unit] = files[unit] of[f]; all[unit] += size[f]
      }
      for (u in files) print all[u] files[u]
    }' | sort -rn | cut -d' ' -f2- |  # the longest first
    xargs -L 1 -P "$(nproc)" bash -c 'tidy "$@"' tidy || { echo "lint.sh: clang-tidy has found something, above" >&2; exit 1; }
}
tidy_folders "" "${sources[@]}"
[ "${#with_torch[@]}" = 0 ] || tidy_folders "$libtorch" "${with_torch[@]}"
echo "lint: clang-tidy is silent on $((checked + ${#with_torch[@]})) files"
