#!/usr/bin/env bash
# Makes the site of docs/: pages with search that open from a folder, without a server and without a network. About half a minute.
#
#   scripts/docs.sh [--run] [FOLDER]          default: build-docs
#     --run: runs the notebooks of examples/notebooks first, so that their pages have what the cells show. Needs a build (STAGECRAFT_BUILD,
#     default build/) and what scripts/setup.sh --models installs; a minute more.
#
# The tools come by scripts/setup.sh --docs. A link or anchor that leads nowhere, and a page that docs/README.md does not list, end it with
# exit code 1.
set -euo pipefail
run=0
[ "${1:-}" != --run ] || { run=1; shift; }
case "${1:-}" in
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "docs.sh: unknown argument $1 (--run)" >&2; exit 2 ;;
esac
folder=$(realpath -m "${1:-$(dirname "$0")/../build-docs}")
cd "$(dirname "$0")/.."
. scripts/environment.sh
[ "$(cat "$stagecraft_docs_venv/ready" 2> /dev/null)" = "${stagecraft_docs[*]}" ] ||
  { echo "docs.sh: no mkdocs of the versions in scripts/environment.sh: run scripts/setup.sh --docs" >&2; exit 2; }
# Its pages are replaced, and nothing else is.
if [ -e "$folder" ] && [ -n "$(ls -A "$folder")" ] && ! [ -e "$folder/made_by_docs_sh" ]; then
  echo "docs.sh: $folder: holds other things than a site of scripts/docs.sh: name another folder" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if command -v doxygen > /dev/null; then
  mapfile -t headers < <(grep -oE '[a-z_0-9]+(/[a-z_0-9]+)+\.h' cmake/StagecraftInstall.cmake | sort -u | while read -r file; do [ ! -e "$file" ] || echo "$file"; done)
  mkdir "$work/cpp"
  { cat scripts/docs/Doxyfile; echo "INPUT = scripts/docs/headers.md ${headers[*]}"; echo "OUTPUT_DIRECTORY = \"$work/cpp\""; } | doxygen -
  export STAGECRAFT_DOCS_CPP=$work/cpp
else
  echo "docs.sh: no doxygen (scripts/setup.sh --docs): the pages of the C++ headers are left out" >&2
fi
if [ "$run" = 1 ]; then
  scripts/python scripts/docs/run_notebooks.py "$work/notebooks"
  export STAGECRAFT_DOCS_NOTEBOOKS=$work/notebooks
fi
export PYTHONPATH=scripts/docs NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1
# Not --quiet: then it counts no warnings.
"$stagecraft_docs_venv/bin/mkdocs" build --strict -d "$work/site" > "$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
rm "$work/site/404.html" # a server's
touch "$work/site/made_by_docs_sh" # says next time whose folder it is
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
cp -r "$work/site" "$folder"
echo "docs: $folder/index.html"
