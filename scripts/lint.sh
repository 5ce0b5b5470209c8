#!/usr/bin/env bash
# Prose, format and lint, as CI does it.
#   scripts/lint.sh [--fix] [--tidy] [--includes]
#     --fix: formats in place; --tidy: clang-tidy as well; --includes: each source compiles without those beside it, which unity builds
#     hide. Minutes for all sources, seconds when little changed.
# Both tools are LLVM 14's (scripts/setup.sh --lint). clang-tidy and --includes take the sources that do without LibTorch; each of
# the others would cost them many seconds of parsing ATen. Those have the compiler's own warnings, and the dev preset, which builds
# without unity.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

fix=0
tidy=0
includes=0
for argument in "$@"; do
  case "$argument" in
    --fix) fix=1 ;;
    --tidy) tidy=1 ;;
    --includes) includes=1 ;;
    *) echo "lint.sh: unknown argument $argument (--fix, --tidy, --includes)" >&2; exit 2 ;;
  esac
done

python3 scripts/prose.py
format=$(stagecraft_llvm clang-format) || { echo "lint.sh: no clang-format 14; run scripts/setup.sh --lint" >&2; exit 2; }
mapfile -t sources < <(git ls-files '*.h' '*.cpp' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if [ "$fix" = 1 ]; then
  "$format" -i "${sources[@]}"
else
  "$format" --dry-run -Werror "${sources[@]}"
fi
echo "lint: format of ${#sources[@]} files is right, says $format"

[ "$tidy$includes" != 00 ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$PWD" "$work/stagecraft"  # includes are spelled from there
mapfile -t sources < <(git ls-files 'base/*.cpp' 'schedules/*.cpp' 'partitioner/*.cpp' 'engine/settings/*.cpp' 'engine/metrics/*.cpp' 'engine/report/*.cpp' 'cli/*.cpp' \
  ':!cli/engine_*' ':!cli/doctor.cpp' ':!cli/profile.cpp' ':!cli/train.cpp')
# What was fine once, with the same headers and rules, is not looked at again: it leaves a seal here.
rules=$(git ls-files .clang-tidy 'base/*.h' 'schedules/*.h' 'partitioner/*.h' 'cli/*.h' 'engine/*.h' | xargs cat | sha256sum)
sealed=$stagecraft_cache/tidy
mkdir -p "$sealed"
# seal_of CHECK FILES...: the path of the seal.
seal_of() { echo "$sealed/$({ echo "$rules" "$@"; cat "${@:2}"; } | sha256sum | cut -c1-32)"; }
export work rules sealed
export -f seal_of

if [ "$includes" = 1 ]; then
  # As a build compiles them, with its precompiled header; no code is made.
  for build in build build-planner; do
    [ ! -e $build/CMakeFiles/stagecraft_precompiled_plain.dir/cmake_pch.hxx.gch ] || break
  done
  compile=$(grep -s -o '"command": "[^"]* -o [^"]*/precompiled_plain.cpp"' $build/compile_commands.json | sed 's/^"command": "//; s/ -o .*//') ||
    { echo "lint.sh: --includes needs what a build has made of the headers: cmake --preset planner && cmake --build --preset planner" >&2; exit 2; }
  export compile="$compile -I$work -DSTAGECRAFT_VERSION=\"\" -fsyntax-only"
  alone() {
    local seal
    seal=$(seal_of "$compile" "$1")
    [ -e "$seal" ] || { $compile "$1" && touch "$seal"; }
  }
  export -f alone
  printf '%s\n' "${sources[@]}" | xargs -n 1 -P "$(nproc)" bash -c 'alone "$1"' alone ||
    { echo "lint.sh: a source does not compile by itself, above" >&2; exit 1; }
  echo "lint: each of ${#sources[@]} files compiles by itself"
fi

[ "$tidy" = 1 ] || exit 0
if ! clang_tidy=$(stagecraft_llvm clang-tidy); then
  echo "lint: no clang-tidy 14 here; left out"
  exit 0
fi
export clang_tidy

# tidy FILES...: silent, or everything clang-tidy says. A folder is read as one source, so that its headers are parsed once; where that
# does not compile (two files have a helper of the same name), halves of it are.
tidy() {
  local seal unit said half=$(($# / 2)) worst=0
  seal=$(seal_of tidy "$@")
  [ ! -e "$seal" ] || return 0
  unit=$work/${seal##*/}.cpp
  printf '#include "stagecraft/%s"\n' "$@" > "$unit"
  if said=$("$clang_tidy" --quiet --config-file=.clang-tidy --checks=-bugprone-suspicious-include --warnings-as-errors='*' \
    "$unit" -- -std=c++20 -I"$work" -DSTAGECRAFT_VERSION='""' 2>&1); then
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

printf '%s\n' "${sources[@]}" | awk -F/ '{ folder = $0; sub("/[^/]*$", "", folder); of[folder] = of[folder] " " $0; ++size[folder] }
  END { for (f in of) print size[f] of[f] }' | sort -rn | cut -d' ' -f2- |  # the longest first
  xargs -L 1 -P "$(nproc)" bash -c 'tidy "$@"' tidy || { echo "lint.sh: clang-tidy has found something, above" >&2; exit 1; }
echo "lint: clang-tidy is silent on ${#sources[@]} files"
