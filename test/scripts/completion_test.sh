#!/usr/bin/env bash
# What the shells complete, as the command itself writes it.
#   completion_test.sh BINARY
set -euo pipefail
binary=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
touch plan.json
"$binary" completion bash -o bash
"$binary" completion zsh -o zsh
# shellcheck disable=SC1091  # made above
. ./bash

# completes EXPECTED WORD...: of a line whose last word is being typed.
completes() {
  local expected=$1
  shift
  COMP_WORDS=(stagecraft "$@") COMP_CWORD=$# COMPREPLY=()
  _stagecraft || true
  [ "${COMPREPLY[*]}" = "$expected" ] || { echo "stagecraft $*: completes \"${COMPREPLY[*]}\", expected \"$expected\"" >&2; exit 1; }
}

completes "compare convert" co
completes "--set --schedule --stages" plan --s
completes "zb_h1 zb_h2 zb_v" plan --schedule zb
completes "1f1b,zb_h1 1f1b,zb_h2 1f1b,zb_v" compare --schedules 1f1b,zb
completes "1f1b" compare --schedules = 1f
completes "none all all_but_last auto" explain --recompute ""
completes "step p95" compare --choose-by ""
completes "devices layers" replan --attribute ""
completes "profile plan" schema p
completes "csv csv-comms csv-comms-2.11" convert plan.json --to c
completes "plan.json" check pl
completes "plan.json" plan --profile pl
completes "" plan --stages ""
completes "plan.json" plan --json pl  # a flag takes no value
completes "" no-such-verb ""

if command -v zsh > /dev/null; then zsh -n zsh; fi
