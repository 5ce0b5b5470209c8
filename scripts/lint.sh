#!/usr/bin/env bash
# Format and lint, as CI does it.
#   scripts/lint.sh [--fix] [--tidy]        --fix: formats in place; --tidy: clang-tidy as well (a minute, seconds when little changed)
# Both tools are LLVM 14's (scripts/setup.sh --lint). clang-tidy runs on the sources that do without LibTorch; each of the others
# would cost it half a minute of parsing ATen, and those have the compilers' own warnings.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

fix=0
tidy=0
for argument in "$@"; do
  case "$argument" in
    --fix) fix=1 ;;
    --tidy) tidy=1 ;;
    *) echo "lint.sh: unknown argument $argument (--fix, --tidy)" >&2; exit 2 ;;
  esac
done

format=$(stagecraft_llvm clang-format) || { echo "lint.sh: no clang-format 14; run scripts/setup.sh --lint" >&2; exit 2; }
mapfile -t sources < <(git ls-files '*.h' '*.cpp' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if [ "$fix" = 1 ]; then
  "$format" -i "${sources[@]}"
else
  "$format" --dry-run -Werror "${sources[@]}"
fi
echo "lint: format of ${#sources[@]} files is right, says $format"

[ "$tidy" = 1 ] || exit 0
if ! clang_tidy=$(stagecraft_llvm clang-tidy); then
  echo "lint: no clang-tidy 14 here; left out"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rules=$(git ls-files .clang-tidy 'schedules/*.h' 'partitioner/*.h' 'cli/*.h' 'engine/*.h' | xargs cat | sha256sum)
sealed=$stagecraft_cache/tidy
mkdir -p "$sealed"
export clang_tidy work rules sealed

# tidy FILES...: silent, or everything clang-tidy says. A folder is read as one source, so that its headers are parsed once; where that
# does not compile (two files have a helper of the same name), halves of it are. What was fine once, with the same headers and rules,
# is not looked at again.
tidy() {
  local seal unit said half=$(($# / 2)) worst=0
  seal=$sealed/$({ echo "$rules" "$@"; cat "$@"; } | sha256sum | cut -c1-32)
  [ ! -e "$seal" ] || return 0
  unit=$work/${seal##*/}.cpp
  printf '#include "%s"\n' "$@" > "$unit"
  if said=$("$clang_tidy" --quiet --config-file=.clang-tidy --checks=-bugprone-suspicious-include --warnings-as-errors='*' \
    "$unit" -- -std=c++20 -I. -DSTAGECRAFT_VERSION='""' 2>&1); then
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

mapfile -t sources < <(git ls-files 'schedules/*.cpp' 'partitioner/*.cpp' 'engine/report/*.cpp' engine/run/metrics.cpp 'cli/*.cpp' \
  ':!cli/engine_*' ':!cli/doctor.cpp' ':!cli/profile.cpp' ':!cli/train.cpp')
printf '%s\n' "${sources[@]}" | awk -F/ '{ folder = $0; sub("/[^/]*$", "", folder); of[folder] = of[folder] " " $0 } END { for (f in of) print of[f] }' |
  xargs -L 1 -P "$(nproc)" bash -c 'tidy "$@"' tidy || { echo "lint.sh: clang-tidy has found something, above" >&2; exit 1; }
echo "lint: clang-tidy is silent on ${#sources[@]} files"
