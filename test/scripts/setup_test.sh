#!/usr/bin/env bash
# scripts/setup.sh on machines that lack things, without a network: PATH holds nothing but stand-ins and a few basics, and the
# cache folder has a space in its name.
#   setup_test.sh SOURCE_DIR
set -uo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset STAGECRAFT_LIBTORCH STAGECRAFT_TORCH
export XDG_CACHE_HOME="$work/a cache"
tools="$XDG_CACHE_HOME/stagecraft/tools"
bad=0
complain() { echo "FAILED: $1"; sed 's/^/    /' "$work/out"; bad=1; }
# expect NAME CODE TEXT ARGUMENTS...: exit code and a piece of the output
expect() {
  local name=$1 code=$2 text=$3 found
  shift 3
  PATH=$work/bin "$source/scripts/setup.sh" "$@" > "$work/out" 2>&1
  found=$?
  [ "$found" = "$code" ] || complain "$name: exit code $found instead of $code"
  grep -qF -- "$text" "$work/out" || complain "$name: no \"$text\""
}
# stand_in NAME: a command from standard input
stand_in() { { echo '#!/bin/sh'; cat; } > "$work/bin/$1"; chmod +x "$work/bin/$1"; }

mkdir "$work/bin"
for command in bash sh cat dirname env flock mkdir sed sort touch true uname; do ln -s "$(type -P $command)" "$work/bin/"; done
for command in g++ ccache git mpirun; do echo | stand_in $command; done
echo 'echo 1000' | stand_in id
echo 'exit 1' | stand_in sudo
echo 'exit 100' | stand_in apt-get
echo 'exit 1' | stand_in python3  # is there, and has no venv

expect "neither sudo nor venv" 2 "apt-get install cmake ninja-build python3-venv"
expect "the planner, neither sudo nor venv" 2 "apt-get install cmake ninja-build python3-venv" --planner-only
[ ! -e "$tools" ] || complain "neither sudo nor venv: left $tools"

# A Python whose virtual environments have a pip that makes a command of each wheel, and keeps a log.
stand_in python3 << STAND_IN
[ "\$1" = -c ] && exit 0
mkdir -p "\$3/bin"
cp "$work/pip" "\$3/bin/pip"
STAND_IN
cat > "$work/pip" << STAND_IN
#!/bin/sh
echo "\$@" >> "$work/pip.log"
for wheel; do case "\$wheel" in */*) continue ;; esac; : > "\${0%/*}/\${wheel%%=*}" && chmod +x "\${0%/*}/\${wheel%%=*}"; done
STAND_IN
chmod +x "$work/pip"
ln -s "$(type -P cp)" "$(type -P chmod)" "$work/bin/"

# The callers source environment.sh first, and then use what setup.sh installed.
PATH=$work/bin bash -c ". '$source/scripts/environment.sh'; '$source/scripts/setup.sh' > '$work/out' 2>&1; command -v cmake ninja" > "$work/found"
grep -qF "setup: ready" "$work/out" || complain "wheels: not ready"
[ "$(cat "$work/found")" = "$tools/bin/cmake
$tools/bin/ninja" ] || complain "wheels: not on the caller's PATH: $(cat "$work/found")"
grep -qF "torch==" "$work/pip.log" || complain "LibTorch was not installed"

PYTHONDONTWRITEBYTECODE=1 bash -c ". '$source/scripts/environment.sh'; [ -z \"\${PYTHONDONTWRITEBYTECODE+set}\" ]" || complain "Python may not keep what it compiles"

# A torch that is asked for by name.
: > "$work/pip.log"
STAGECRAFT_TORCH=2.11 expect "an older torch" 0 "torch==2.11."
grep -qF "torch==2.11." "$work/pip.log" || complain "an older torch: pip was asked for $(cat "$work/pip.log")"
for unknown in 2.1 2.13 2.11.9 3 torch; do STAGECRAFT_TORCH=$unknown expect "torch $unknown" 2 "STAGECRAFT_TORCH is \"$unknown\", expected 2."; done

: > "$work/pip.log"
expect "second run" 0 "setup: ready"
[ "$(wc -l < "$work/out")" = 1 ] || complain "second run: did something"
[ ! -s "$work/pip.log" ] || complain "second run: pip $(cat "$work/pip.log")"

# Without what only tests need, and with PyTorch's wheels for CPUs: of torch and torchvision alike, also when asked for later.
rm -r "$XDG_CACHE_HOME"
: > "$work/pip.log"
read -r torch torchvision < <(grep '^[0-9]' "$source/python/stagecraft_tools/torch_versions.txt")
expect "CPU" 0 "torch==$torch+cpu" --cpu --no-tests
grep -q -- "--extra-index-url https://download.pytorch.org/whl/cpu torch==$torch+cpu numpy" "$work/pip.log" || complain "CPU: pip was asked for $(cat "$work/pip.log")"
! grep -q pytest "$work/pip.log" || complain "no tests: pip was asked for $(cat "$work/pip.log")"
: > "$work/pip.log"
expect "CPU, models later" 0 "setup: ready" --models
[ "$(grep -o "torch[a-z]*==[^ ]*" "$work/pip.log" | tr '\n' ' ')" = "torchvision==$torchvision+cpu torch==$torch+cpu " ] || complain "CPU, models later: pip was asked for $(cat "$work/pip.log")"
rm -r "$XDG_CACHE_HOME"
sed -i '1a case "$*" in *+cpu*) exit 1 ;; esac' "$work/pip"
expect "CPU, no such index" 2 "no torch==$torch+cpu from https://download.pytorch.org/whl/cpu: without --cpu it comes from PyPI" --cpu
sed -i '2d' "$work/pip"
[ ! -e "$XDG_CACHE_HOME/stagecraft/venv-torch-$torch/ready" ] || complain "CPU, no such index: called ready"

# With sudo, which hands no variables on. LLVM's tools are never asked of apt.
rm -r "$XDG_CACHE_HOME"
echo 'shift; exec env -u DEBIAN_FRONTEND "$@"' | stand_in sudo
echo "echo \"\$DEBIAN_FRONTEND \$*\" >> '$work/apt.log'" | stand_in apt-get
echo | stand_in apt-cache
expect "sudo" 0 "clang-format==14.0.6 clang-tidy==" --planner-only --lint
grep -q "^noninteractive install .*cmake ninja-build" "$work/apt.log" || complain "sudo: apt-get was asked for $(cat "$work/apt.log")"
! grep -q clang "$work/apt.log" || complain "sudo: apt-get was asked for $(cat "$work/apt.log")"

# Without: what is to be asked of the administrator has no wheels in it.
rm -r "$XDG_CACHE_HOME"
echo 'exit 1' | stand_in sudo
echo 'exit 1' | stand_in python3
expect "docs, neither sudo nor venv" 2 "no Doxygen to be had here" --planner-only --docs
grep -q "apt-get install cmake ninja-build python3-venv" "$work/out" || complain "docs, neither sudo nor venv: does not say what to install"
expect "lint, neither sudo nor venv" 2 "apt-get install cmake ninja-build python3-venv" --planner-only --lint
exit $bad
