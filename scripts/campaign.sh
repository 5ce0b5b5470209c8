#!/usr/bin/env bash
# Campaigns: a run is hurt at random, over and over, and has to end with the bits of one that was left alone (docs/reliability.md).
#   scripts/campaign.sh kills|pauses|wakes|namespaces|soak|oom|hostile|simulation [--minutes N] [--seed N] [--trials N] [--build build]
# Prints a table; ends with 1 where something was wrong, after the line that makes that trial again.
set -euo pipefail
folder=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/environment.sh
. "$folder/environment.sh"
export PYTHONPATH=$folder OMP_NUM_THREADS=1 STAGECRAFT_PYTHON_WITH_TORCH=$stagecraft_venv/bin/python
exec python3 -m campaigns "$@"
