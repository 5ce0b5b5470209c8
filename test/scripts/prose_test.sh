#!/usr/bin/env bash
# scripts/prose.py on a small tree: it names each kind of slip with file and line, and passes ordinary sentences.
#   prose_test.sh SOURCE_DIR
set -uo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
# expect NAME CODE: runs the script on the tree and compares what it says with standard input
expect() {
  local found
  python3 "$source/scripts/prose.py" "$work" > "$work/out"
  found=$?
  [ "$found" = "$2" ] || { echo "FAILED: $1: exit code $found instead of $2"; bad=1; }
  diff "$work/out" - > "$work/diff" || { echo "FAILED: $1"; sed 's/^/    /' "$work/diff"; bad=1; }
  rm -rf "${work:?}"/*
}
words() { for _ in $(seq "$1"); do printf 'word '; done; }

# The slips are put together from these, so that this file is clean itself.
docs=docs

mkdir "$work/$docs"
{ printf '# A page\n\n'; words 20; printf '\n\n| '; words 30; printf '|\n\n```\n'; words 30; printf '\n```\n\n    '; words 30; } > "$work/$docs/page.md"
printf '\nA rank holds a stage.\nIt runs a step and has a layer.\n[page](page.md), [part](page.md#a-page), [web](https://x.org)\n' >> "$work/$docs/page.md"
# shellcheck disable=SC2016  # of Markdown
printf '// `%s/page.md`; one list per rank, which holds a stage\n' $docs > "$work/fine.h"
expect "ordinary text" 0 <<< "prose: no findings in 2 files"

{ printf 'short\n'; words 21; } > "$work/long.md"
expect "a long line" 1 << 'END'
long.md:2: 105 columns: wrap prose at 100
prose: 1 findings in 1 files
END

mkdir "$work/$docs"
# shellcheck disable=SC2016  # of Markdown
printf '# Top\n\n[gone](gone.md) [no part](#below) [yes](#top)\n`%s/none.svg`\n' $docs > "$work/$docs/links.md"
printf '# %s/none.md\n' $docs > "$work/named.sh"
expect "links" 1 << END
$docs/links.md:3: gone.md does not exist
$docs/links.md:3: links.md has no heading #below
$docs/links.md:4: $docs/none.svg does not exist
named.sh:1: $docs/none.md does not exist
prose: 4 findings in 2 files
END

[ "$bad" = 0 ] && echo "prose.py finds what it should"
exit "$bad"
