"""The c10d transport over Gloo: ranks are forks of this process, each with a group that torch.distributed
made, and C++ finds the group by its name (test/engine/c10d_ranks.cpp)."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

from places import BUILD, STAGECRAFT

LIBRARY = BUILD / "test" / "engine" / "libtest_c10d_ranks.so"


def launched(number, world, **more):
    """What torchrun tells one of its processes."""
    names = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "RANK": number, "LOCAL_RANK": number, **more}
    return {name: str(value) for name, value in names.items()}


def rank(number, world, store, what, argument):
    """One rank's life; its exit code."""
    torch.set_num_threads(1)
    library = ctypes.CDLL(str(LIBRARY))
    if isinstance(store, int):  # the port of the one that stands for the agent's
        agent = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store, "TORCHELASTIC_USE_AGENT_STORE": True}
        os.environ.update(launched(number, world, **agent))
        return library.stagecraft_c10d_rank(what.encode(), b"store", str(argument).encode())
    os.environ.update(launched(number, world))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=world)
    groups = [dist.new_group(backend="gloo"), dist.new_group(backend="gloo")]
    names = [group.group_name.encode() for group in groups]
    if what == "both":
        argument = names[1].decode()
    return library.stagecraft_c10d_rank(what.encode(), names[0], str(argument).encode())


class Ranks:
    """All ranks of one case, as processes."""

    def __init__(self, scratch, world, what, argument="", store=None):
        sys.stdout.flush()
        self.processes, self.outputs = [], []
        store = store or scratch / f"store_{what}_{world}"
        for number in range(world):
            self.outputs.append(scratch / f"{what}_{world}_{number}.txt")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    output = os.open(self.outputs[-1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                    os.dup2(output, 1)
                    os.dup2(output, 2)
                    code = rank(number, world, store, what, argument)
                finally:
                    os._exit(code)
            self.processes.append(child)

    def wait(self, seconds=60, but=()):
        """Exit codes and texts, by rank. A rank that takes longer is killed, and those of `but` are as soon
        as all others have ended."""
        codes = {}
        until = time.monotonic() + seconds
        while len(codes) < len(self.processes):
            for number in set(range(len(self.processes))) - set(codes):
                ended, status = os.waitpid(self.processes[number], os.WNOHANG)
                if ended:
                    codes[number] = os.waitstatus_to_exitcode(status)
            left = set(range(len(self.processes))) - set(codes)
            if time.monotonic() > until or left == set(but):
                for number in left:
                    os.kill(self.processes[number], signal.SIGKILL)
            time.sleep(0.02)
        texts = [output.read_text() for output in self.outputs]
        return [codes[number] for number in range(len(codes))], texts


def run(scratch, world, what, argument="", store=None):
    codes, texts = Ranks(scratch, world, what, argument, store).wait(120)
    assert codes == [0] * world, "\n".join(texts)
    return texts


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_contract_holds(scratch, world):
    run(scratch, world, "contract")


def test_runs_equal_the_oracle_to_the_bit(scratch):
    assert "runs over 2 ranks of c10d compared" in run(scratch, 2, "equality", 199)[0]
    assert "runs over 3 ranks of c10d compared" in run(scratch, 3, "tied", 29)[0]


@pytest.fixture(scope="module")
def agent():
    """The port of a store as torchrun's agent has one: ranks come and go. It has threads, so it has a process
    of its own: ranks are forks of this one, and would wait for what a thread held then."""
    here = os.getpid()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            os.write(write, str(store.port).encode())
            while os.getppid() == here:
                time.sleep(1)
        finally:
            os._exit(0)
    yield int(os.read(read, 16))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_without_python_torchruns_store_carries_what_ranks_tell_each_other(scratch, agent):
    for world in (2, 3):
        run(scratch, world, "contract", store=agent)
    assert "runs over 2 ranks of c10d compared" in run(scratch, 2, "equality", 399, store=agent)[0]
    texts = run(scratch, 3, "failure", store=agent)
    assert all("rank 1 failed: the disk is full" in heard(texts, number)[1] for number in (0, 2))
    codes, texts = Ranks(scratch, 2, "killed", store=agent).wait()
    assert codes == [0, -signal.SIGKILL], texts
    assert "the process of rank 1 has ended without a word" in heard(texts, 0)[1]


def without_python(*arguments):
    """Two processes of the program, of which the first one opens the store: codes, and what they said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [STAGECRAFT, *arguments],
            env={**os.environ, **launched(number, 2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    texts = [process.communicate(timeout=120)[0] for process in processes]
    return [process.returncode for process in processes], texts


def test_without_python_two_processes_measure_together_and_train_over_nccl_alone(scratch):
    path, profile = config(scratch, "measured"), scratch / "profile.json"
    codes, texts = without_python("profile", path, "-o", profile)
    assert codes == [0, 0], texts
    assert json.loads(profile.read_text())["busy_ranks"] == 2
    for arguments in (["train", path], ["profile", path, "--links"]):
        codes, texts = without_python(*arguments)
        said = "".join(texts)
        assert codes[0] == 2 and said.count("\n") == 1, said
        assert "NCCL has to carry the tensors" in said and "`torchrun ... -m stagecraft ...`" in said
    assert not (scratch / "measured").exists()


TINY_RUN = {
    "model": {"family": "mlp", "hidden": [16, 12]},
    "data": {"type": "synthetic", "samples": 96, "validation_samples": 16, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": 4,
    "threads_per_rank": 1,
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "pipeline": {"cuts": [2]},
}


def config(scratch, name, **more):
    path = scratch / f"{name}.json"
    path.write_text(json.dumps({**TINY_RUN, "run_dir": str(scratch / name), **more}))
    return path


def losses(scratch, name):
    lines = (scratch / name / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def test_a_run_of_processes_is_that_of_threads(scratch):
    # A shape is computed by what `import torch` has registered, which imports this: once, before the forks.
    pytest.importorskip("sympy")
    alone = config(scratch, "alone")
    assert subprocess.run([STAGECRAFT, "train", alone], check=False, capture_output=True).returncode == 0
    run(scratch, 2, "train", config(scratch, "together"))
    assert len(losses(scratch, "alone")) >= 4
    assert losses(scratch, "together") == losses(scratch, "alone")


def test_a_run_that_cannot_be_ends_with_its_code(scratch):
    path = config(scratch, "refused", comms={"backend": "mpi"})
    codes, texts = Ranks(scratch, 2, "train", path).wait(but=[1])  # which torchrun would end
    assert codes[0] == 2, texts
    assert "torchrun started the processes" in texts[0] and "MPI connects none of them" in texts[0]


def test_two_groups_of_one_process_do_not_mix(scratch):
    run(scratch, 2, "both")


def heard(texts, number):
    found = re.search(rf"^rank {number} after ([0-9.]+) s: (.*)$", texts[number], re.MULTILINE)
    assert found, texts
    return float(found[1]), found[2]


def test_a_rank_that_fails_tells_why(scratch):
    texts = run(scratch, 3, "failure")
    for number in (0, 2):
        seconds, what = heard(texts, number)
        assert "gave up" in what and "rank 1 failed: the disk is full" in what
        assert seconds < 3


def test_a_rank_that_is_killed_is_named(scratch):
    codes, texts = Ranks(scratch, 3, "killed").wait()
    assert codes == [0, -signal.SIGKILL, 0], "\n".join(texts)
    for number in (0, 2):
        seconds, what = heard(texts, number)
        # By its silence, or by Gloo's connection to it, whichever is heard first.
        assert "the process of rank 1 has ended without a word" in what or "rank 1 failed: a transfer" in what
        assert seconds < 12


def test_a_rank_that_is_stopped_is_named(scratch):
    codes, texts = Ranks(scratch, 3, "stopped").wait(but=[1])
    assert codes == [0, -signal.SIGKILL, 0], "\n".join(texts)
    for number in (0, 2):
        seconds, what = heard(texts, number)
        assert "rank 1 has not been heard of" in what
        assert seconds < 10


def test_a_rank_that_hangs_is_waited_for_no_longer_than_the_bound(scratch):
    texts = run(scratch, 2, "hanging")
    seconds, what = heard(texts, 0)
    assert "receive of gradient 2" in what and "rank 1 is alive" in what
    assert 1 <= seconds < 3


def test_a_group_that_cannot_carry_is_refused(scratch, capfd):
    assert ctypes.CDLL(str(LIBRARY)).stagecraft_c10d_rank(b"contract", b"none", b"") == 1
    assert 'no process group of torch.distributed is named "none"' in capfd.readouterr().out
