#!/usr/bin/env bash
# What scripts/fresh_root.sh refuses, before it makes anything. (Its roots take minutes, root and the network.)
#   fresh_root_test.sh SOURCE_DIR
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache

# refused SAID ARGUMENTS...
refused() {
  local said=$1 code=0
  shift
  "$source/scripts/fresh_root.sh" "$@" > "$work/out" 2>&1 || code=$?
  { [ "$code" = 2 ] && grep -qF -- "$said" "$work/out" && [ ! -e "$XDG_CACHE_HOME" ]; } || { echo "$*: exit code $code, not: $said"; cat "$work/out"; exit 1; }
}
source=$1
refused "name a release"
refused "name a release" sid
refused "unknown argument --kept" --kept trixie
"$source/scripts/fresh_root.sh" --help | grep -q "RELEASE is bookworm"
mkdir "$work/bin"
# shellcheck disable=SC2016  # a script's
printf '#!/bin/sh\n[ "$1" = -u ] && echo 1000\n' > "$work/bin/id"
chmod +x "$work/bin/id"
PATH=$work/bin:$PATH refused "run it as root" trixie true
