"""Ranks that are killed and started again by torchrun's agent: the run ends with the numbers of one that was
left alone.

The agent is torchrun's own (torch.distributed.launcher), with workers that are forks of it, not new Pythons.
So a start takes milliseconds, not the seconds of `import torch`."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback

import pytest

torch = pytest.importorskip("torch")

from places import BUILD, STAGECRAFT

if not (BUILD / "python" / "stagecraft").is_dir():
    pytest.skip("the module for Python was not built", allow_module_level=True)

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


def rank(folder):
    """One rank's life."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the agent's handlers came with the fork
        signal.signal(number, signal.SIG_DFL)
    with open(f"{folder}/started", "a") as file:
        file.write(f"{os.environ['RANK']} {os.getpid()}\n")
    from stagecraft.__main__ import main

    sys.argv = ["stagecraft", "train", f"{folder}/run.json", "--resume"]
    code = main()
    if code != 0:
        os._exit(code)


def agent(folder, restarts):
    """torchrun's."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    sys.path.insert(0, str(BUILD / "python"))
    from stagecraft.engine import _engine  # noqa: F401 - once, before the forks

    config = LaunchConfig(
        1,
        1,
        RANKS,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=restarts,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(str(folder)),
    )
    elastic_launch(config, rank)(str(folder))


class Agent:
    def __init__(self, folder, restarts):
        self.folder, self.code = folder, None
        self.output = folder / "agent.txt"
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                output = os.open(self.output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                torch.set_num_threads(1)
                agent(folder, restarts)
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
        return self.output.read_text()

    def until(self, true, seconds=60):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end and self.poll() is None, self.said()
            time.sleep(0.005)

    def ranks(self):
        """Process numbers, by rank and by start."""
        path = self.folder / "started"
        lines = path.read_text().splitlines() if path.exists() else []
        whole = [tuple(map(int, line.split())) for line in lines]
        return [dict(whole[at : at + RANKS]) for at in range(0, len(whole), RANKS)]

    def lines(self):
        path = self.folder / "run" / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0


def config(folder, name, **more):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**RUN, **more, "run_dir": str(folder / name)}))
    return path


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
