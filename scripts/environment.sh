# Sourced by the other scripts: where things are, and what Open MPI needs to run as root (containers, CI).
# shellcheck shell=bash disable=SC2034

stagecraft_torch=2.11.0
stagecraft_cache=${XDG_CACHE_HOME:-$HOME/.cache}/stagecraft
stagecraft_venv=$stagecraft_cache/venv-torch-$stagecraft_torch
stagecraft_tools=$stagecraft_cache/tools
stagecraft_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [ -d "$stagecraft_tools/bin" ]; then PATH=$PATH:$stagecraft_tools/bin; fi
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# Seconds as "1 min 05 s".
stagecraft_took() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }
