#!/usr/bin/env bash
# Format and lint, as CI does it.
#   scripts/lint.sh [--fix] [--tidy]        --fix: formats in place; --tidy: clang-tidy as well (minutes)
# clang-tidy runs on the sources that do without LibTorch; each of the others would cost it half a minute of parsing ATen, and
# the compilers' own warnings, as errors, cover those.
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

mapfile -t sources < <(git ls-files '*.h' '*.cpp' | while read -r f; do [ -e "$f" ] && echo "$f"; done)
if [ "$fix" = 1 ]; then
  clang-format -i "${sources[@]}"
else
  clang-format --dry-run -Werror "${sources[@]}"
fi
echo "lint: format of ${#sources[@]} files is right"

[ "$tidy" = 1 ] || exit 0

# GCC's precompiled headers mean nothing to clang: a configuration without them.
build=build-tidy
cmake --preset planner -B "$build" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DSTAGECRAFT_TESTS=OFF > /dev/null

# A source tidied before, with the same text, headers and rules, is not tidied again.
cache=$stagecraft_cache/tidy
mkdir -p "$cache"
rules=$(cat .clang-tidy $(git ls-files 'schedules/*.h' 'partitioner/*.h' 'cli/*.h') | sha256sum | cut -c1-16)
mapfile -t planner < <(git ls-files 'schedules/*.cpp' 'partitioner/*.cpp' 'cli/main.cpp' 'cli/errors.cpp' 'cli/plan.cpp' 'cli/check.cpp' 'cli/simulate.cpp')
todo=()
for f in "${planner[@]}"; do
  [ -e "$f" ] || continue
  [ -e "$cache/$(sha256sum "$f" | cut -c1-16)-$rules" ] || todo+=("$f")
done
if [ "${#todo[@]}" -gt 0 ]; then
  echo "lint: clang-tidy on ${#todo[@]} files"
  printf '%s\0' "${todo[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$build" --quiet --warnings-as-errors='*' 2> /dev/null
  for f in "${todo[@]}"; do touch "$cache/$(sha256sum "$f" | cut -c1-16)-$rules"; done
fi
echo "lint: clang-tidy is silent on ${#planner[@]} files"
