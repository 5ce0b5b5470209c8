"""Runs parts one after the other, each in a session of its own and with a limit of its own. See gpu_first.sh."""

import argparse
import ctypes
import fnmatch
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import parts

ROOT = Path(__file__).resolve().parents[2]
MARK = "STAGECRAFT_GPU_PART"
STACKS_SECONDS = 30  # for all processes of a part
ENDING = 12  # seconds kept for the stacks and the end of the last part
NO_DEVICE = re.compile(r"no device|no CUDA device|skipped: no |has no NVIDIA driver|Found no NVIDIA driver")
PASSED, FAILED, NOT_OVER, NO_GPU, SKIPPED = "passed", "FAILED", "NOT OVER", "no device", "skipped"


def read_manifest():
    """(commit, torch) of the bundle; says what is not as it was packed."""
    try:
        manifest = json.loads((ROOT / "MANIFEST.json").read_text())
    except FileNotFoundError:
        print("gpu_first: no MANIFEST.json here: make a bundle by scripts/gpu_bundle.sh, unpack it and run the gpu_first.sh in it", file=sys.stderr)
        sys.exit(2)
    changed = []
    for file in manifest["files"]:
        path = ROOT / file["path"]
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
            changed.append(file["path"])
    if changed:
        print(f"gpu_first: not as packed: {', '.join(changed)}", flush=True)
    return manifest["commit"], manifest["torch"]


def torch_folder(tested):
    """Of the torch that this python3 imports; it is not imported, which takes seconds. Exits where it is another minor than tested."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        print(f"gpu_first: {sys.executable} has no torch, and this needs the LibTorch of torch {tested}", file=sys.stderr)
        sys.exit(2)
    folder = Path(found.submodule_search_locations[0])
    version = re.search(r"__version__ = '([^']*)'", (folder / "version.py").read_text())
    version = version.group(1) if version else "unknown"
    if tested.split(".")[:2] != version.split(".")[:2]:
        print(f"gpu_first: {sys.executable} has torch {version}; this bundle was built with {tested} and needs its minor", file=sys.stderr)
        sys.exit(2)
    return folder, version


def environment(torch):
    libraries = [ROOT / "lib", ROOT / "openmpi/lib", torch / "lib", *map(Path, sorted(glob.glob(f"{torch.parent}/nvidia/*/lib")))]
    libraries += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))  # a container's driver may be there
    base = {
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)), "OPAL_PREFIX": str(ROOT / "openmpi"), "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # Open MPI 5 asks netlink for the way from a machine to itself, finds none, and complains.
        "OMPI_MCA_reachable": "^netlink",
        "HOME": str(ROOT),  # where there is none, Open MPI does not start
        "NCCL_SOCKET_IFNAME": "lo", "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    return {**base, **os.environ, **{name: base[name] for name in ("LD_LIBRARY_PATH", "OPAL_PREFIX")}}


class Members:
    """The processes of a part: its session, and what carries its mark into others."""

    def __init__(self, leader, mark):
        self.leader, self.mark = leader, f"{MARK}={mark}".encode()

    def find(self):
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                alive = fields[0] != "Z"
                if alive and (int(fields[3]) == self.leader or self.mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")):
                    found.append(int(entry))
            except (OSError, IndexError):
                continue  # it has ended, or is not ours
        return sorted(found)

    def kill(self):
        for _ in range(50):
            left = self.find()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.1)


def threads_of(pid):
    """What the kernel says of each thread: no debugger is needed."""
    lines = []
    for task in sorted(glob.glob(f"/proc/{pid}/task/*")):
        def read(name, task=task):
            try:
                return Path(task, name).read_text().strip()
            except OSError:
                return "?"
        state = read("stat").rpartition(")")[2].split()[:1]
        lines.append(f"  thread {os.path.basename(task)} {read('comm')}: state {''.join(state)}, waits in {read('wchan')}, system call {read('syscall').split()[0]}")
        lines += [f"    {line}" for line in read("stack").splitlines() if line != "?"]
    return lines


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def debugged(pid, until, said):
    """Appends what a debugger says of `pid`. One that hangs with what it debugs is ended, and the next is asked."""
    for name, more in (("cuda-gdb", ["-ex", "info cuda kernels"]), ("gdb", [])):
        debugger, left = shutil.which(name), until - time.monotonic()
        if not debugger or left < 1:
            continue
        command = [debugger, "-p", str(pid), "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 24", *more]
        with tempfile.TemporaryFile() as out:
            job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                job.wait(left if name == "gdb" else 0.6 * left)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
            out.seek(0)
            text = out.read().decode(errors="replace")
        said.append(f"stacks of {pid}, by {name}:\n{text}")
        if "\n#0" in text:
            return


def stacks(pids, seconds):
    """Text: where each process stands. All are asked at once; nobody is asked for longer than `seconds`."""
    until = time.monotonic() + seconds
    lines = []
    for pid in pids:
        lines += [f"process {pid}: {command_of(pid)[:300]}", *threads_of(pid)]
    ours = [pid for pid in pids if re.match(r"\S*bin/(stagecraft|test_gpu|probe)\b", command_of(pid))]
    askers = [threading.Thread(target=debugged, args=(pid, until, lines)) for pid in ours[:8] or pids[:4]]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    if not shutil.which("cuda-gdb") and not shutil.which("gdb"):
        lines.append("(no cuda-gdb or gdb here)")
    return "\n".join(lines) + "\n"


def end_with_parent():
    """A runner that is killed takes the part with it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Runner:
    def __init__(self, arguments, torch, commit):
        self.commit = commit
        self.out = arguments.out.resolve()
        self.until = time.monotonic() + arguments.seconds
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self.results = open(self.out / "results.jsonl", "a", encoding="utf-8")
        except OSError as error:
            print(f"gpu_first: --out {self.out}: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        self.environment = environment(torch)
        self.counts = {}

    def fill(self, word):
        for name, value in (("out", self.out), ("root", ROOT), ("python", sys.executable)):
            word = word.replace("{" + name + "}", str(value))
        return word

    def tell(self, part, result, seconds, said, **more):
        """At once, so that nothing is lost where this is killed."""
        self.counts[result] = self.counts.get(result, 0) + 1
        print(f"{part.name:<24} {result:<10} {seconds:6.1f} s  {said[:150]}", flush=True)
        self.results.write(json.dumps({"at": time.strftime("%Y-%m-%d %H:%M:%S"), "part": part.name, "result": result, "seconds": round(seconds, 2), "said": said, "shows": part.shows, "commit": self.commit, **more}) + "\n")
        self.results.flush()
        os.fsync(self.results.fileno())

    def run(self, part):
        left = self.until - time.monotonic() - ENDING
        if left < part.needs:
            self.tell(part, SKIPPED, 0, f"takes {part.needs} s or more, and {max(0, left):.0f} s are left")
            return
        limit = min(part.seconds, left)
        begin, mark = time.monotonic(), f"{os.getpid()}.{part.name}"
        ours = {name: value for name, value in part.environment.items() if value is not None or name not in os.environ}
        variables = {name: value for name, value in {**self.environment, **ours, MARK: mark}.items() if value is not None}
        output = self.out / f"{part.name}.txt"
        command = [self.fill(word) for word in part.command]
        if not shutil.which(command[0], path=variables.get("PATH")) and not (ROOT / command[0]).exists():
            self.tell(part, SKIPPED, 0, f"no {command[0]} here")
            return
        with open(output, "wb") as out:
            job = subprocess.Popen(command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                   preexec_fn=end_with_parent)
        members, more, code = Members(job.pid, mark), {}, None
        try:
            code = job.wait(limit)
        except subprocess.TimeoutExpired:
            more["stacks"] = stacks(members.find(), min(STACKS_SECONDS, self.until - 4 - time.monotonic()))
            (self.out / f"{part.name}.stacks.txt").write_text(more["stacks"])
            more["stacks"] = more["stacks"][:20000]
        finally:
            members.kill()
            job.wait()
        took = time.monotonic() - begin
        with open(output, "rb") as written:
            written.seek(max(0, output.stat().st_size - (1 << 20)))
            text = written.read().decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip(" -=")]
        said = lines[-1] if lines else ""
        if code is None:
            result, said = NOT_OVER, f"after {limit:.0f} s; {part.name}.stacks.txt says where; last: {said}"
        elif code == 0:
            result = PASSED
        elif missing := [line for line in lines if NO_DEVICE.search(line)]:
            result, said = NO_GPU, missing[-1]
        else:
            result, said = FAILED, f"exit code {code}: {said}"
        self.tell(part, result, took, said, code=code, command=command, output=text[-6000:], **more)


def choose(arguments):
    if arguments.hosts:
        chosen = parts.two_hosts(arguments.hosts.split(","), arguments.per_host)
    elif arguments.machine:
        chosen = parts.machine(arguments.machine)
    else:
        chosen = parts.second() if arguments.second else parts.first()
    names = {part.name for part in chosen}
    lacking = {word for part in chosen for word in part.command if word.startswith("plans/") and not (ROOT / word).exists()}
    if lacking and (ROOT / "plans").exists():
        print(f"gpu_first: this bundle has no {', '.join(sorted(lacking))}: its lists are for machines of 4 or 8 GPUs, and for two of them", file=sys.stderr)
        sys.exit(2)
    for pattern in arguments.only:
        if not fnmatch.filter(names, pattern):
            print(f"gpu_first: no part {pattern}; there are {', '.join(sorted(names))}", file=sys.stderr)
            sys.exit(2)
    return [part for part in chosen if not arguments.only or any(fnmatch.fnmatch(part.name, pattern) for pattern in arguments.only)]


def main():
    parser = argparse.ArgumentParser(prog="gpu_first.sh", description="What a machine with GPUs shows in a quarter of an hour, the most valuable first.")
    parser.add_argument("--second", action="store_true", help="the second list: all equality cases, and step times with their spread (about an hour)")
    parser.add_argument("--machine", type=int, metavar="N", help="the list for one machine with N GPUs")
    parser.add_argument("--hosts", metavar="HOST,HOST", help="the list for several hosts, with the bundle in the same folder of each")
    parser.add_argument("--per-host", type=int, default=8, metavar="N", help="GPUs of each (default: 8)")
    parser.add_argument("--list", action="store_true", help="print the parts and end")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these parts (a pattern as of files; may be repeated)")
    parser.add_argument("--seconds", type=float, help="for all of it (default: 420; the other lists: 3600)")
    parser.add_argument("--out", type=Path, default=Path("gpu_results"), metavar="DIR", help="results.jsonl, outputs and stacks (default: gpu_results)")
    arguments = parser.parse_args()
    chosen = choose(arguments)
    first = not (arguments.second or arguments.machine or arguments.hosts)
    if arguments.seconds is None:
        arguments.seconds = 420 if first else 3600
    if arguments.list:
        for part in chosen:
            print(f"{part.name:<24} {part.seconds:>4} s  {part.shows}\n    {' '.join([*(f'{n}={v}' for n, v in part.environment.items() if v), *part.command])}")
        return 0
    commit, tested = read_manifest()
    torch, version = torch_folder(tested)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    runner = Runner(arguments, torch, commit)
    print(f"gpu_first: commit {commit}, torch {version} of {torch}; {len(chosen)} parts, {arguments.seconds:g} s; results go to {runner.out}", flush=True)
    for part in chosen:
        runner.run(part)
    print("gpu_first: " + ", ".join(f"{count} {result}" for result, count in runner.counts.items()))
    if runner.counts.get(FAILED) or runner.counts.get(NOT_OVER):
        return 1
    return 77 if runner.counts.get(NO_GPU) else 0


if __name__ == "__main__":
    sys.exit(main())
