#!/usr/bin/env bash
# Runs a command as MPI ranks that stand in network namespaces of their own, joined by links of a given speed: several hosts and a slow
# network on one machine. Root only. What it sets up is gone when it ends; what a run that was killed left is gone when the next one begins.
#
#   scripts/bench/netns.sh RANKS MBIT [-s N] [-d MS] [-l PERCENT] COMMAND...
#   scripts/bench/netns.sh 4 200 build/stagecraft train configs/delays.json
#
# Every rank has one card: what leaves it shares MBIT megabits per second (tc tbf), as `"shared_by": "child"` says in a cluster.json.
# MBIT 0: as fast as it goes. -s: so many ranks per host, which share its card (default 1). -d: milliseconds each way on top, -l: percent
# of packets that are lost (tc netem, where the kernel has it). Exit code 77: namespaces or shaping are not permitted here.
# The namespaces are scPID-hub and scPID-2, scPID-3, ..., with this script's PID; the cable of host 2 is scPID-hub's port2
# (scripts/campaigns/namespaces.py pulls it).
# Messages up to 4 MiB leave at once (OMPI_MCA_btl_tcp_eager_limit), into socket buffers of 8 MiB, so that the kernel carries
# them while a rank computes: MPI itself moves nothing then, and with its own limit of 64 KiB the other side would have to answer first.
set -euo pipefail

if [[ ${1:-} == --agent ]]; then # mpirun's remote shell: HOST COMMAND
  host=$2
  shift 2
  exec ip netns exec "$STAGECRAFT_NETNS-${host##*.}" sh -c "$*"
fi

skip() {
  echo "netns.sh: skipped: $1" >&2
  exit 77
}

(($# >= 3)) || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
ranks=$1 mbit=$2
shift 2
slots=1 delay=0 loss=0
while [[ $1 == -[sdl] ]]; do
  case $1 in
    -s) slots=$2 ;;
    -d) delay=$2 ;;
    -l) loss=$2 ;;
  esac
  shift 2
done
[[ $ranks =~ ^[1-9][0-9]*$ && $ranks -le 250 ]] || { echo "netns.sh: RANKS is 1 to 250, not '$ranks'" >&2; exit 2; }
[[ $mbit =~ ^(0|[1-9][0-9]*)$ ]] || { echo "netns.sh: MBIT is a whole number of megabits per second, not '$mbit'" >&2; exit 2; }
[[ $slots =~ ^[1-9][0-9]*$ ]] || { echo "netns.sh: -s is a number of ranks per host, not '$slots'" >&2; exit 2; }
((ranks % slots == 0)) || { echo "netns.sh: $ranks ranks do not fill hosts of $slots" >&2; exit 2; }
hosts=$((ranks / slots))

export STAGECRAFT_NETNS="sc$$"
export PATH="$PATH:/usr/sbin:/sbin"
hub="$STAGECRAFT_NETNS-hub"
work=$(mktemp -d)
remove() { # NAMESPACE...
  local space
  for space in "$@"; do
    ip netns pids "$space" 2> /dev/null | xargs -r kill -9 2> /dev/null || true
    ip netns del "$space" 2> /dev/null || true
  done
}
clean() {
  trap '' INT TERM
  # shellcheck disable=SC2046  # names are words
  remove "$hub" $(seq -f "$STAGECRAFT_NETNS-%g" 2 $((hosts + 1)))
  rm -rf "$work"
}
trap clean EXIT
trap 'exit 143' INT TERM

{ command -v ip && command -v tc; } > /dev/null || skip "iproute2 (ip, tc) is not installed"
ip netns list 2> /dev/null | { grep -oE '^sc[0-9]+-(hub|[0-9]+)' || true; } | while read -r space; do
  owner=${space#sc}
  kill -0 "${owner%%-*}" 2> /dev/null || remove "$space"
done
ip netns add "$hub" 2> "$work/why" || skip "no network namespaces: $(head -1 "$work/why")"
{
  ip -n "$hub" link add bridge type bridge && ip -n "$hub" addr add 10.177.0.1/16 dev bridge
  ip -n "$hub" link set bridge mtu 9000 up && ip -n "$hub" link set lo up
} 2> "$work/why" || skip "no bridge: $(head -1 "$work/why")"

# One shaped card per host. Packets of 9,000 bytes: what headers take of the rate is below a percent.
for number in $(seq 2 $((hosts + 1))); do
  space="$STAGECRAFT_NETNS-$number"
  {
    ip netns add "$space"
    ip -n "$hub" link add "port$number" mtu 9000 type veth peer name card mtu 9000 netns "$space"
    ip -n "$hub" link set "port$number" master bridge up
    ip -n "$space" addr add "10.177.0.$number/16" dev card
    ip -n "$space" link set lo up
    ip -n "$space" link set card up
    # What a rank sends lies here while it computes. The default size, since sockets may not ask for more than a limit outside.
    ip netns exec "$space" sh -c 'echo 4096 8388608 16777216 > /proc/sys/net/ipv4/tcp_wmem && cp /proc/sys/net/ipv4/tcp_wmem /proc/sys/net/ipv4/tcp_rmem'
  } 2> "$work/why" || skip "no virtual cards: $(head -1 "$work/why")"
  parent=root
  if ((mbit > 0)); then
    ip netns exec "$space" tc qdisc add dev card root handle 1: tbf rate "${mbit}mbit" burst $((20000 + 30 * mbit)) limit 16m \
      2> "$work/why" || skip "no tc tbf: $(head -1 "$work/why")"
    parent="parent 1:1"
  fi
  if [[ $delay != 0 || $loss != 0 ]]; then
    # shellcheck disable=SC2086  # two words
    ip netns exec "$space" tc qdisc add dev card $parent netem delay "${delay}ms" loss "$loss%" limit 100000 2> "$work/why" ||
      skip "no tc netem: $(head -1 "$work/why")"
  fi
  echo "10.177.0.$number slots=$slots" >> "$work/hosts"
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
OMPI_MCA_plm_rsh_agent="$(readlink -f "$0") --agent"
export OMPI_MCA_plm_rsh_agent OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_plm_rsh_num_concurrent=250
export OMPI_MCA_oob_tcp_if_include=10.177.0.0/16 OMPI_MCA_btl_tcp_if_include=10.177.0.0/16 OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1
export OMPI_MCA_btl_tcp_sndbuf=0 OMPI_MCA_btl_tcp_rcvbuf=0
export OMPI_MCA_btl_tcp_eager_limit="${OMPI_MCA_btl_tcp_eager_limit:-4194304}" OMPI_MCA_btl_tcp_max_send_size="${OMPI_MCA_btl_tcp_max_send_size:-4194304}"
# Waited for in the background: bash hears of signals only between commands.
ip netns exec "$hub" mpirun -np "$ranks" --hostfile "$work/hosts" --bind-to none "$@" &
wait $!
