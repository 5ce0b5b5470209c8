"""Ranks that are killed and started again by torchrun's agent: the run ends with the numbers of one that was
left alone.

The agent is torchrun's own (torch.distributed.launcher), with workers that are forks of it, not new Pythons.
So a start takes milliseconds, not the seconds of `import torch`."""

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback

import pytest

torch = pytest.importorskip("torch")

from places import BUILD, STAGECRAFT, require_package

require_package()

RANKS = 3
DELAY = {
    "type": "delay",
    "forward_ms": 2,
    "backward_input_ms": 2,
    "backward_weight_ms": 1,
    "features": 8,
    "parameters": 1,
}
RUN = {
    "model": {
        "family": "sequential",
        "layers": [
            {"type": "linear", "features": 8},
            {"type": "relu"},
            DELAY,
            {"type": "linear", "features": 4},
        ],
    },
    "data": {"type": "synthetic", "samples": 64, "validation_samples": 0, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "train_steps": 120,
    "threads_per_rank": 1,
    "pipeline": {"cuts": [2, 3]},
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "checkpoint": {"every_steps": 10},
}
KILLS = 4
RANKS_OF_MACHINE = 2


def rank(folder):
    """One rank's life."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the agent's handlers came with the fork
        signal.signal(number, signal.SIG_DFL)
    # Until its machine's other ranks are there: a connection makes the agent's store look up a name, and a
    # fork meanwhile leaves its child a lock that nobody opens.
    time.sleep(0.3)
    with open(f"{folder}/started", "a") as file:
        file.write(f"{os.environ['RANK']} {os.getpid()}\n")
    from stagecraft.__main__ import main

    sys.argv = ["stagecraft", "train", f"{folder}/run.json", "--resume"]
    code = main()
    if code != 0:
        os._exit(code)


def agent(folder, restarts, machines):
    """torchrun's. `machines`: None for one alone; else the fewest and the most, and where they meet."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    sys.path.insert(0, str(BUILD / "python"))
    from stagecraft.engine import _engine  # noqa: F401 - once, before the forks

    if machines is not None:
        # Else a machine that comes to others waits forever: they do not tell it their store (torch 2.15).
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"

    # Numbers, not names: who forks while a thread looks up a name leaves its child a lock that nobody opens.
    fewest, most, meet = machines or (1, 1, "127.0.0.1:0")
    config = LaunchConfig(
        fewest,
        most,
        RANKS if machines is None else RANKS_OF_MACHINE,
        run_id="job",
        rdzv_backend="c10d",
        rdzv_endpoint=meet,
        local_addr="127.0.0.1",
        # A machine that was killed is missed after some 3 s.
        rdzv_configs={"keep_alive_interval": 1, "keep_alive_max_attempt": 3, "last_call_timeout": 2},
        start_method="fork",
        max_restarts=restarts,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(str(folder)),
    )
    elastic_launch(config, rank)(str(folder))


class Agent:
    def __init__(self, folder, restarts, machines=None, name="agent"):
        self.folder, self.code = folder, None
        self.output = folder / f"{name}.txt"
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)  # with its ranks a machine that is killed whole
                output = os.open(self.output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                torch.set_num_threads(1)
                agent(folder, restarts, machines)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def poll(self):
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds=60):
        end = time.monotonic() + seconds
        while self.poll() is None:
            assert time.monotonic() < end, self.said()
            time.sleep(0.02)
        return self.code

    def said(self):
        """And all other agents of the job, after it."""
        others = (path for path in self.folder.glob("*.txt") if path != self.output)
        return "".join(path.read_text() for path in (self.output, *others))

    def until(self, true, seconds=60):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end and self.poll() is None, self.said()
            time.sleep(0.005)

    def ranks(self):
        """Process numbers, by rank and by start."""
        whole = self.started()
        return [dict(whole[at : at + RANKS]) for at in range(0, len(whole), RANKS)]

    def started(self):
        """Rank and process of each that has ever started, in their order."""
        path = self.folder / "started"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def lines(self):
        """Of metrics.jsonl, which a start without a checkpoint renames."""
        try:
            return (self.folder / "run" / "metrics.jsonl").read_text().count("\n")
        except FileNotFoundError:
            return 0


def config(folder, name, **more):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**RUN, **more, "run_dir": str(folder / name)}))
    return path


def is_open(address):
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def losses(run):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


def last_checkpoint(run):
    folder = max((run / "checkpoints").iterdir())
    return folder.name, {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*.safetensors"))
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was left alone: its folder."""
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(
        [STAGECRAFT, "train", config(folder, "run")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_ranks_killed_at_random_end_with_the_bits_of_a_run_left_alone(tmp_path, whole):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    choose = random.Random(seed)
    config(tmp_path, "run")
    job = Agent(tmp_path, KILLS)
    waits = []
    for number in range(KILLS):
        job.until(lambda number=number: len(job.ranks()) > number and len(job.ranks()[number]) == RANKS)
        if number > 0:  # some while it starts up, some in its steps, some between the two
            begun = job.lines()
            job.until(lambda begun=begun: job.lines() != begun)
        time.sleep(choose.choice([0, 0.02, 0.2, 0.5]))
        victim = job.ranks()[number][choose.randrange(RANKS)]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        job.until(lambda number=number: len(job.ranks()) > number + 1)
        waits.append(time.monotonic() - killed)
    print(f"from a kill to the next start: {', '.join(f'{wait:.1f}' for wait in waits)} s")
    assert job.wait() == 0, job.said()
    assert losses(tmp_path / "run") == losses(whole)
    assert last_checkpoint(tmp_path / "run") == last_checkpoint(whole)
    assert min(waits) < 20, "ranks end when one of them is gone, not after comms.timeout_s"


def test_ranks_that_miss_another_tell_torchrun_what_they_did(tmp_path):
    config(tmp_path, "run", train_steps=100000)
    job = Agent(tmp_path, 0)
    job.until(lambda: job.lines() > 5)
    os.kill(job.ranks()[0][1], signal.SIGKILL)
    assert job.wait() != 0
    assert "Signal 9 (SIGKILL)" in job.said()
    said = {file.parent.name: json.loads(file.read_text()) for file in tmp_path.rglob("error.json")}
    assert said.keys() == {"0", "2"}
    for rank, error in said.items():
        words = error["message"]["message"]
        assert words.startswith(f"rank {rank}: stage {rank}, step "), words
        assert "the process of rank 1 has ended without a word" in words or "rank 1 failed" in words
        assert error["message"]["errorCode"] == 4
    note = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert note["code"] == 4 and "rank 1" in note["message"]


def test_an_agent_that_is_told_to_end_leaves_a_checkpoint(tmp_path):
    config(tmp_path, "run", train_steps=100000, checkpoint={"every_steps": 0})
    job = Agent(tmp_path, 3)
    job.until(lambda: job.lines() > 5)
    os.kill(job.pid, signal.SIGTERM)
    told = time.monotonic()
    assert job.wait() != 0
    assert time.monotonic() - told < 20
    note = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert note["code"] == 75, job.said()
    assert "stopped by TERM after step" in note["message"]
    assert len(job.ranks()) == 1, "nothing was started again"


def test_a_spare_waits_for_the_end_and_starts_again_with_the_others(tmp_path):
    pipeline = {"ranks": {"max": RANKS - 1}}
    config(tmp_path, "run", pipeline=pipeline)
    alone = config(tmp_path, "alone", pipeline=pipeline)
    job = Agent(tmp_path, 1)
    job.until(lambda: job.lines() > 5)
    os.kill(job.ranks()[0][1], signal.SIGKILL)
    assert job.wait() == 0, job.said()
    assert [set(start) for start in job.ranks()] == [{0, 1, 2}] * 2
    done = subprocess.run([STAGECRAFT, "train", alone], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "alone") == losses(tmp_path / "run")


def test_a_machine_that_is_lost_and_comes_back_changes_the_plan_and_no_bit(tmp_path):
    """Two agents with two ranks each: one is killed with its ranks, the other goes on alone, then both."""
    pipeline = {"ranks": {"min": 2, "multiple_of": 2}}
    config(tmp_path, "run", pipeline=pipeline, train_steps=100000)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        machines = (1, 2, f"127.0.0.1:{probe.getsockname()[1]}")
    stays = Agent(tmp_path, 5, machines, "stays")  # it has the store
    stays.until(lambda: is_open(machines[2]))
    lost = Agent(tmp_path, 5, machines, "lost")

    def trains_on(ranks):
        lines = stays.lines()
        stays.until(lambda: stays.lines() > lines + 5)
        stages = json.loads((tmp_path / "run" / "plan.json").read_text())["stages"]
        assert len(stages) == ranks, stays.said()

    trains_on(4)
    os.killpg(lost.pid, signal.SIGKILL)
    killed = time.monotonic()
    stays.until(lambda: len(stays.started()) == 6)
    print(f"from the loss to the next start: {time.monotonic() - killed:.1f} s")
    trains_on(2)
    assert "the plan needs 4 ranks, but 2 were launched: the run is planned again" in stays.said()
    assert "profile.json of an earlier start" in stays.said(), "nothing is measured twice"
    lost.poll()
    again = Agent(tmp_path, 5, machines, "again")
    stays.until(lambda: len(stays.started()) == 10)
    trains_on(4)
    os.kill(stays.pid, signal.SIGTERM)
    assert stays.wait() != 0 and again.wait() != 0
    made = losses(tmp_path / "run")
    alone = config(tmp_path, "alone", pipeline=pipeline, train_steps=len(made))
    done = subprocess.run([STAGECRAFT, "train", alone], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "alone") == made
    assert last_checkpoint(tmp_path / "alone") == last_checkpoint(tmp_path / "run")
