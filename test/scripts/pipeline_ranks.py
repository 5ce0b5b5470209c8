"""One rank of pipelines, started by torchrun or mpirun (pipeline_processes_test.py): `pipeline_ranks.py
FOLDER WHAT...`, each in FOLDER/WHAT."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import stagecraft as sc
from places import MEASURED_ONCE

torch.set_num_threads(1)
RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(4))
        )
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.body(x))


def loss(output, batch):
    return torch.nn.functional.cross_entropy(output, batch["targets"])


def batches():
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 16, generator=generator), torch.randint(0, 5, (16,), generator=generator))
        for _ in range(6)
    ]


def pipeline(seed=0, **given):
    torch.manual_seed(seed)
    given = {"stages": 2, "micro_batches": 4, "threads_per_rank": 1} | given
    given["config"] = MEASURED_ONCE | given.get("config", {})
    return sc.pipeline(Net(), batches()[0], loss=loss, **given)


def train():
    """Losses and weights, a checkpoint on the way, one more pipeline beside the first."""
    step, beside = pipeline(), pipeline(schedule="zb_h1")
    losses = []
    for number, batch in enumerate(batches()):
        found = step(batch if number % 2 else (batch[0], batch[1]))
        losses.append(found.loss)
        assert beside(batch).loss == found.loss
        assert [time.rank for time in found.ranks] == [0, 1]
        if number == 2:
            step.save(FOLDER / "run")
    losses.append(step.evaluate(batches()[0]).loss)
    again = sc.load(FOLDER / "run")
    assert [again(batch).loss for batch in batches()[3:]] == losses[3:6]
    weights = step.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in again.state_dict().items())
    loaded = "libmpi" in Path("/proc/self/maps").read_text()
    assert loaded == ("OMPI_COMM_WORLD_RANK" in os.environ), "MPI is there under mpirun alone"
    torch.save({"losses": losses, "weights": weights}, FOLDER / f"rank-{RANK}.pt")


def at_once():
    """Over MPI, pipelines of a process take turns: steps of one end before those of another begin, and no
    call is made while the other one's is."""
    step, beside = pipeline(), pipeline(schedule="zb_h1")
    for batch in batches():
        one, other = step(batch), beside(batch)
        assert one.loss == other.loss

    def between(*_):
        try:
            beside.evaluate(batches()[0])
        except sc.InputError as error:
            (FOLDER / f"said-{RANK}").write_text(str(error))

    if RANK == 0:
        signal.signal(signal.SIGALRM, between)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    else:
        time.sleep(1)
    assert step.evaluate(batches()[0]).loss == beside.evaluate(batches()[0]).loss


def unequal():
    """Modules that differ are refused on all ranks."""
    try:
        pipeline(seed=RANK)
    except sc.InputError as error:
        (FOLDER / f"said-{RANK}").write_text(str(error))


def wrong():
    """A batch that one rank refuses is refused by all, nobody hangs, and the pipeline goes on."""
    step = pipeline()
    step(batches()[0])
    x, y = batches()[1]
    words = []
    unlike = (x, y, y) if RANK == 1 else (x, y)
    for batch in ((x, y + (9 if RANK == 1 else 0)), (x[: 16 - RANK], y[: 16 - RANK]), unlike):
        try:
            step(batch)
        except sc.InputError as error:
            words.append(str(error))
    assert step(batches()[1]).step == 1
    (FOLDER / f"said-{RANK}").write_text("\n".join(words))


def unsaved():
    """A checkpoint that one rank cannot write is refused by all, and the pipeline goes on. The planner
    answers each process, whatever started it."""
    step = pipeline()
    step(batches()[0])
    (FOLDER / "file").write_text("")
    try:
        step.save(FOLDER / "file")
    except sc.InputError as error:
        words = str(error)
    assert step(batches()[1]).step == 1
    assert "1f1b" in str(step.plan)
    cluster = sc.Cluster.of_machines(2, bytes_per_second=1e10)
    assert sc.plan(sc.Profile.of_layers([1.0, 2.0, 1.0]), cluster, micro_batches=4).step_ms > 0
    (FOLDER / f"said-{RANK}").write_text(words)


def half_saved():
    """What rank 0 alone finds of a run directory is refused by all alike, before the checkpoint is written
    and behind it, and the pipeline goes on."""
    step = pipeline()
    step(batches()[0])
    step.save(FOLDER / "run")
    words = []
    if RANK == 0:
        model = FOLDER / "run" / "model"
        model.rename(FOLDER / "model")
        model.symlink_to("nowhere")
    try:
        step.save(FOLDER / "run")
    except sc.InputError as error:
        words.append(str(error))
    step(batches()[1])
    if RANK == 0:
        model.unlink()
        (FOLDER / "model").rename(model)
    step.save(FOLDER / "run")
    sc.load(FOLDER / "run").save(FOLDER / "run")
    try:
        step.save(FOLDER / "run")
    except sc.PeerError as error:
        words.append(str(error))
    assert step(batches()[2]).step == 2
    (FOLDER / f"said-{RANK}").write_text("\n".join(words))


def killed():
    """One that is gone is named by the others."""
    step = pipeline(config={"comms": {"timeout_s": 20}})
    step(batches()[0])
    if RANK == 1:
        os.kill(os.getpid(), 9)
    try:
        for batch in batches():
            assert step(batch).loss > 0
    except sc.PeerError as error:
        (FOLDER / f"said-{RANK}").write_text(str(error))
        os._exit(0)


def raises():
    """An error of the script's own ends the others at once."""
    step = pipeline()
    step(batches()[0])
    if RANK == 1:
        raise ValueError("of the script")
    try:
        assert step(batches()[1]).loss > 0
    except sc.PeerError as error:
        (FOLDER / f"said-{RANK}").write_text(str(error))


class Constant(torch.nn.Module):
    def forward(self, x):
        return x


def refusals():
    """Kind and words of each."""
    x, y = batches()[0]
    one = {
        "stages of no rank": {"config": {"pipeline": {"stages": 3}}},
        "a schedule's slip": {"schedule": "1f1v"},
        "cuts that leave nothing": {"cuts": [99]},
        "widths of more ranks": {"widths": [2, 2]},
        "a config's slip": {"config": {"pipeline": {"stagez": 2}}},
        "a plan that is not there": {"plan": FOLDER / "none.json"},
        "a rate that is none": {"learning_rate": 3},
        "a device that is not there": {"config": {"device": "cuda"}},
        "an argument of one rank": {"optimizer": sc.AdamW(lr=1e-3 * (1 + RANK))},
        "a plan of one rank": {"plan": FOLDER / "none.json" if RANK == 1 else None},
        "threads of one rank": {"threads_per_rank": RANK},
    }
    made = {what: lambda given=given: pipeline(**given) for what, given in one.items()}
    made["a module that is none"] = lambda: sc.pipeline(Constant(), (x, y), loss=loss)
    made["a module of one rank"] = lambda: sc.pipeline(Net() if RANK else Constant(), (x, y), loss=loss)
    made["no loss of one rank"] = lambda: sc.pipeline(Net(), (x, y), loss=loss if RANK else None)
    made["a run that is not there"] = lambda: sc.load(FOLDER / "none")
    words = []
    for what, make in made.items():
        try:
            make()
            words.append(f"{what}: nothing: is refused")
        except sc.StagecraftError as error:
            words.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}")
    step = pipeline()
    assert step(batches()[0]).loss > 0, "nobody is out of step"
    (FOLDER / f"said-{RANK}").write_text("\n".join(words))


if __name__ == "__main__":
    for what in sys.argv[2:]:
        FOLDER = Path(sys.argv[1]) / what
        FOLDER.mkdir(exist_ok=True)
        {
            "at_once": at_once,
            "killed": killed,
            "raises": raises,
            "refusals": refusals,
            "train": train,
            "unequal": unequal,
            "wrong": wrong,
            "unsaved": unsaved,
            "half_saved": half_saved,
        }[what]()
