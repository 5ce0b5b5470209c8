#!/usr/bin/env bash
# Tries the README's two commands, or others, on a fresh Debian: a root folder made by debootstrap, in which a clone of the checkout's
# commit runs them. Fails where they fail or print a warning. Run it as root; it needs debootstrap, the network, and 10 GB.
#
#   scripts/fresh_root.sh [--keep] [--again ROOT] [--caches] RELEASE [COMMAND...]
#
# RELEASE is bookworm (Debian 12: GCC 12, Open MPI 4, Catch2 2) or trixie (Debian 13: GCC 14, Open MPI 5, Catch2 3). Each COMMAND is one
# shell command line (default: scripts/quickstart.sh, then scripts/test.sh). The roots lie in ~/.cache/stagecraft/roots, each with its log
# beside it. --keep leaves the root there; --again uses a kept one, with the commit that is checked out now. --caches: all such roots
# share what pip and ccache have stored, for quicker repeats.
# Mounts and processes are in namespaces of their own, so nothing is left mounted or running, however this ends.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

# Where the commands run: in new mount and process namespaces, before anything is mounted.
if [ "${1:-}" = --inside ]; then
  root=$2 shared=$3
  shift 3
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  for cache in ${shared:+pip ccache}; do
    mkdir -p "$shared/$cache" "$root/root/.cache/$cache"
    mount --bind "$shared/$cache" "$root/root/.cache/$cache"
  done
  # Process numbers begin anew in here, and Open MPI refuses folders of an earlier one of that number.
  rm -rf "$root"/tmp/prte* "$root"/tmp/ompi.*
  # How this machine reaches the network. Signals as a terminal gives them: what a shell starts in the background ignores Ctrl-C, and
  # what nohup starts HUP, which tests send.
  mapfile -t network < <(env | grep -iE '^((https?|ftp|all|no)_proxy|PIP_(CERT|PROXY|INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)|SSL_CERT_FILE)=')
  for command in "$@"; do
    printf '\nfresh_root: %s\n' "$command"
    chroot "$root" /usr/bin/env -i --default-signal HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${network[@]}" \
      bash -c "cd /root/stagecraft && $command" || exit
  done
  exit
fi

say() { echo "fresh_root: $*"; }
fail() { echo "fresh_root.sh: $*" >&2; exit 2; }
keep=0 root="" shared="" roots=$stagecraft_cache/roots
while [[ ${1:-} == -* ]]; do
  case "$1" in
    --keep) keep=1 ;;
    --again) keep=1 root=${2:?"--again ROOT"}; shift ;;
    --caches) shared=$roots/shared ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "unknown argument $1 (--keep, --again ROOT, --caches)" ;;
  esac
  shift
done
release=${1:-}
[[ $release =~ ^(bookworm|trixie)$ ]] || fail "name a release: bookworm (Debian 12) or trixie (Debian 13)"
shift
[ "$#" -gt 0 ] || set -- scripts/quickstart.sh scripts/test.sh
[ "$(id -u)" = 0 ] || fail "run it as root: debootstrap and chroot need that"
command -v debootstrap > /dev/null || fail "debootstrap is missing: apt-get install debootstrap"
[ -z "$(git status --porcelain --untracked-files=no)" ] || say "note: what is not committed is not tried"

child=""
# shellcheck disable=SC2317,SC2329  # the trap calls it
clean_up() {
  [ -z "$child" ] || kill -KILL "$child" 2> /dev/null || true  # and with it, all in its namespaces
  [ "$keep" = 1 ] || [ -z "$root" ] || rm -rf --one-file-system "$root"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The base of a release is made once, and copied.
base=$roots/base-$release
if [ -z "$root" ]; then
  mkdir -p "$roots"
  if ! [ -e "$base" ]; then
    # The mirror of this machine.
    # shellcheck disable=SC2016  # apt-get's own
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' 2> /dev/null | grep -v security | head -n 1 || true)
    say "debootstrap of $release (a minute)"
    rm -rf --one-file-system "$base.part"
    debootstrap --variant=minbase "$release" "$base.part" "${mirror:-http://deb.debian.org/debian}" > "$base.log" 2>&1 || { tail -n 20 "$base.log"; exit 1; }
    mv "$base.part" "$base"
  fi
  root=$(mktemp -d "$roots/$release.XXXX")
  cp -a "$base/." "$root"
  # Names, certificates, and the settings of apt and pip as this machine has them.
  apt-config dump | grep -iE '^Acquire::[a-z]+::(Proxy|CAInfo|Verify)' > "$root/etc/apt/apt.conf.d/80host" || true
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || install -D -m 644 "$file" "$root$file"
  done
  for file in .config/pip/pip.conf .pip/pip.conf; do
    [ ! -e "$HOME/$file" ] || install -D -m 644 "$HOME/$file" "$root/root/$file"
  done
  # The package ca-certificates, once it comes, writes the file above anew, and these into it.
  mkdir -p "$root/usr/local/share/ca-certificates"
  cp -R /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates"
  git clone -q --no-hardlinks . "$root/root/stagecraft"
else
  root=$(realpath "$root")
  [[ $root == "$roots"/* && -e $root/root/stagecraft ]] || fail "--again: $root is no root that --keep left in $roots"
  [[ $(cat "$root/etc/os-release") == *"=$release"* ]] || fail "--again: $root is no $release"
  git -C "$root/root/stagecraft" fetch -q "$PWD" HEAD
  git -C "$root/root/stagecraft" checkout -q --detach FETCH_HEAD
fi

say "commit $(git rev-parse --short HEAD) on $release in $root"
start=$SECONDS code=0
log=$root.log
: > "$log"  # tail may be there first
unshare --mount --pid --fork --kill-child "$0" --inside "$root" "$shared" "$@" < /dev/null > "$log" 2>&1 &
child=$!
tail -n +1 -f --pid="$child" "$log" &
wait "$child" || code=$?
child=""
wait $! || true
[ "$keep" = 0 ] || say "kept: $root"
say "$(stagecraft_took $((SECONDS - start))), exit code $code; the log: $log"
if [ "$code" = 0 ] && grep -n -iE '\bwarning\b|deprecated' "$log"; then
  echo "fresh_root.sh: the commands succeed, but print the warnings above" >&2
  exit 1
fi
exit "$code"
