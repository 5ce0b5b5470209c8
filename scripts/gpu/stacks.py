"""Where processes stand that do not end."""

import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path


def threads_of(pid):
    """What the kernel says of each thread: no debugger is needed."""
    lines = []
    for task in sorted(glob.glob(f"/proc/{pid}/task/*")):

        def read(name, task=task):
            try:
                return Path(task, name).read_text(encoding="utf-8", errors="replace").strip()
            except OSError:
                return "?"

        state = read("stat").rpartition(")")[2].split()[:1]
        lines.append(
            f"  thread {os.path.basename(task)} {read('comm')}: state {''.join(state)}, waits in"
            f" {read('wchan')}, system call {(read('syscall').split() or ['?'])[0]}"
        )
        lines += [f"    {line}" for line in read("stack").splitlines() if line != "?"]
    return lines


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def debugged(pid, until, mark, said):
    """Appends what a debugger says of `pid`. One that hangs with what it debugs is ended, and the next is
    asked."""
    for name, more in (("cuda-gdb", ["-ex", "info cuda kernels"]), ("gdb", [])):
        debugger, left = shutil.which(name), until - time.monotonic()
        if not debugger or left < 1:
            continue
        command = [
            debugger,
            "-p",
            str(pid),
            "-batch",
            "-ex",
            "set pagination off",
            "-ex",
            "thread apply all bt 24",
            *more,
        ]
        with tempfile.TemporaryFile() as out:
            try:
                job = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **mark},
                )
            except OSError as error:
                said.append(f"({name}: {error.strerror})")
                continue
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


def stacks(pids, seconds, mark):
    """Text: where each process stands. All are asked at once; nobody is asked for longer than `seconds`.
    Debuggers have `mark` in their environment."""
    until = time.monotonic() + seconds
    lines = []
    for pid in pids:
        lines += [f"process {pid}: {command_of(pid)[:300]}", *threads_of(pid)]
    ours = [pid for pid in pids if re.match(r"\S*bin/(stagecraft|test_gpu|probe)\b", command_of(pid))]
    askers = [
        threading.Thread(target=debugged, args=(pid, until, mark, lines), daemon=True)
        for pid in ours[:8] or pids[:4]
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    if not shutil.which("cuda-gdb") and not shutil.which("gdb"):
        lines.append("(no cuda-gdb or gdb here)")
    return "\n".join(lines) + "\n"
