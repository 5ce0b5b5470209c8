"""stagecraft.pipeline() as a library behaves: what it leaves alone, threads, signals, its plan, and what
follows it."""

import gc
import os
import re
import site
import subprocess
import sys
import sysconfig
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import BUILD, require_package

require_package()

import stagecraft as sc
from pipeline_cases import MICRO_BATCHES, assert_same_weights, class_loss, net, pairs, pipeline
from stagecraft.structure import structure_of
from stagecraft_tools.installed import folders, is_installed


def test_a_structure_is_all_that_a_capture_sees():
    base = structure_of(net(), [])
    assert base == structure_of(net(seed=5), []), "values of weights are no part of it"
    assert base != structure_of(net(blocks=3), [])
    assert base != structure_of(net(dropout=0.5), [])
    assert base != structure_of(net(), ["another loss"])
    frozen = net()
    frozen.head.weight.requires_grad_(False)
    assert base != structure_of(frozen, [])
    told = net()
    told.scale = 2.0
    assert base != structure_of(told, [])
    told.scale = torch.tensor(2.0)
    other = net()
    other.scale = torch.tensor(3.0)
    assert structure_of(told, []) != structure_of(other, [])
    told.lock = threading.Lock()
    assert structure_of(told, []) is None, "what cannot be pickled is captured each time"


@pytest.mark.parametrize("users", [False, True])
def test_a_users_files_are_those_that_are_not_installed(tmp_path, monkeypatch, users):
    monkeypatch.setattr(site, "ENABLE_USER_SITE", users)
    folders.cache_clear()
    packages = site.getsitepackages()
    for folder in (*packages, sysconfig.get_path("stdlib")):
        assert is_installed(f"{folder}/package/file.py"), folder
    # Of other environments, which this one may see by a .pth file; the user's own folder is one of them.
    assert is_installed("/opt/app/lib/python3.11/site-packages/package/file.py")
    assert is_installed(f"{site.getusersitepackages()}/package/file.py")
    assert (os.path.realpath(site.getusersitepackages()) + os.sep in folders()) == users
    # What containers have: below Python's own prefix, and no package.
    for file in (
        f"{sys.prefix}/src/app/model.py",
        tmp_path / "net.py",
        f"{sysconfig.get_path('stdlib')}-mine/net.py",
        tmp_path / "my-site-packages" / "net.py",
        tmp_path / "site-packages",
    ):
        assert not is_installed(str(file)), file
    folders.cache_clear()


def test_weights_set_anew():
    step, other = pipeline(), net(seed=7)
    step.load_state_dict(other.state_dict())
    assert_same_weights(step, other)
    with pytest.raises(sc.InputError, match="the state has no head"):
        step.load_state_dict({n: t for n, t in other.state_dict().items() if n != "head.weight"})


def test_a_module_stays_as_it_is():
    module = net().eval()
    module.head.weight.grad = torch.ones_like(module.head.weight)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    batch = pairs()[0]
    kept = [t.clone() for t in batch]
    step = pipeline(module=module, batch=batch, cache=False)
    step(batch)
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()
    assert not module.training
    assert torch.equal(module.head.weight.grad, torch.ones_like(module.head.weight))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(batch, kept))


def test_several_pipelines_at_once_and_freed():
    first, second = pipeline(), pipeline()
    threads = set(threading.enumerate())
    before = len(os.listdir("/proc/self/task"))
    found = []

    def train(step):
        found.append([step(batch).loss for batch in pairs()])

    workers = [threading.Thread(target=train, args=(step,)) for step in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found[0] == found[1]
    assert set(threading.enumerate()) <= threads
    gone = weakref.ref(first)
    del first, second, workers
    gc.collect()
    assert gone() is None
    assert len(os.listdir("/proc/self/task")) < before


def test_two_steps_at_once_are_refused():
    batch = pairs(samples=512, width=256)[0]
    step = pipeline(module=net(width=256, blocks=12), batch=batch)
    said = []

    def train():
        for _ in range(20):
            try:
                step(batch)
            except sc.InputError as error:
                said.append(str(error))

    workers = [threading.Thread(target=train) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert said
    assert set(said) == {"two calls at once: a pipeline makes one after the other"}
    assert step.steps + len(said) == 40


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        x, y = pairs(3)[index // 16]
        return x[index % 16], y[index % 16]


def test_workers_of_a_data_loader():
    """They are forks, with the threads of ranks nowhere."""
    step, twin = pipeline(), pipeline()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=2)
    assert [step(batch).loss for batch in loader] == [twin(batch).loss for batch in pairs(3)]


def test_closed():
    with pipeline() as step:
        step(pairs()[0])
    with pytest.raises(sc.InputError, match="this pipeline is closed"):
        step(pairs()[0])
    with pytest.raises(sc.InputError, match="this pipeline is closed"):
        print(step)


def test_interrupt_ends_behind_the_step():
    import signal

    step = pipeline(module=net(width=256, blocks=12), batch=pairs(samples=512, width=256)[0])
    batch = pairs(samples=512, width=256)[0]
    step(batch)
    timer = threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGINT))

    def train():
        timer.start()
        for _ in range(200):
            step(batch)

    with pytest.raises(KeyboardInterrupt):
        train()
    made = step.steps
    assert step(batch).step == made


LOOKS_AROUND = """
import signal, sys, threading
before = [signal.getsignal(s) for s in (2, 15, 10)]
import stagecraft
assert before == [signal.getsignal(s) for s in (2, 15, 10)]
assert 'torch' not in sys.modules and threading.active_count() == 1
"""


def test_importing_changes_nothing():
    import subprocess

    said = subprocess.run(
        [
            sys.executable,
            "-c",
            LOOKS_AROUND,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(BUILD / "python")},
    )
    assert said.returncode == 0, said.stderr


def test_profile_plan_and_run():
    found = sc.profile(net(), pairs()[0], loss=class_loss, micro_batches=MICRO_BATCHES)
    assert [layer.name for layer in found.measurements[0].layers][-2:] == ["head", "loss"]
    plan = sc.plan(
        found,
        sc.Cluster.of_machines(2, bytes_per_second=1e9),
        schedule="1f1b",
        stages=2,
        micro_batches=MICRO_BATCHES,
    )
    assert "stage" in str(plan)
    assert len(plan.stages) == 2


def test_a_plan_of_ones_own(scratch):
    step = pipeline(schedule="zb_h1")
    step.plan.save(scratch / "plan.json")
    again = pipeline(stages=None, plan=scratch / "plan.json")
    assert again.plan.schedule.name == "zb_h1"
    assert again(pairs()[0]).loss == step(pairs()[0]).loss


def test_what_numbers_may_be():
    step = pipeline(optimizer=sc.AdamW(lr=torch.tensor(1e-3)))
    assert step(pairs()[0]).learning_rate == pytest.approx(1e-3)
    assert step.is_first
    assert pipeline(optimizer="adamw").config["optimizer"]["type"] == "AdamW"
    again = pipeline(stages=None, plan=step.plan)
    assert [s.first_layer for s in again.plan.stages] == [s.first_layer for s in step.plan.stages]


def test_steps_are_sent_to_a_tool(monkeypatch):
    """Steps and evaluations, as they were made, until the end."""
    from stagecraft_follow import command, step_log
    from stagecraft_follow.target import Target

    kept = []

    class Recorder(Target):
        def __init__(self, about):
            self.about, self.id = about, "mine"
            kept.append(self)
            self.points, self.end = [], None

        def send(self, points):
            self.points += points

        def close(self, end):
            self.end = end.word

    step = pipeline()
    with pytest.raises(sc.InputError, match="no_such_tool"):
        step.log_to("no_such_tool")
    for module in (command, step_log):
        monkeypatch.setattr(module, "target_class", lambda name: Recorder)
    step.log_to("otlp", name="net")
    first, second = pairs(2)
    made = step(first)
    evaluated = step.evaluate(second)
    after = step(second)
    step.close()
    (recorder,) = kept
    assert recorder.end == "finished" and recorder.about.name == "net" and recorder.about.config["seed"] == 0
    found = {(p.step, f.flat): f.number for p in recorder.points for f in p.figures}
    assert found[1, "train/loss"] == made.loss and found[2, "train/loss"] == after.loss
    assert found[1, "validation/loss"] == evaluated.loss
    assert found[2, "rank_1/time_compute_ms"] == after.ranks[1].compute * 1e3
    assert found[2, "time/step_predicted_ms"] == recorder.about.plan["predicted"]["step_ms"]


ENDS_WITHOUT_CLOSE = """
import atexit, sys, torch
import stagecraft as sc
from stagecraft_follow import step_log

class Client:
    def __init__(self):
        atexit.register(print, "the client ends")  # as wandb does
    def send(self, points):
        print("sent", [point.step for point in points])
    def close(self, end):
        print("closed")

step_log.make_target = lambda to, about: Client()
net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
batch = torch.zeros(4, 4), torch.zeros(4, 4)
step = sc.pipeline(net, batch, loss="mse", optimizer=sc.SGD(lr=0.1), stages=2, micro_batches=2)
step.log_to("tensorboard", sys.argv[1] + "/tensorboard")
for _ in range(3):
    step(batch)
print("saved", step.save(sys.argv[1]))
"""


def test_the_last_steps_are_sent_before_a_client_ends(scratch):
    """At Python's end, too; and a folder with what was sent may become the run's."""
    (scratch / "run" / "tensorboard").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WITHOUT_CLOSE, scratch / "run"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{BUILD}/python"},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "the client ends" and said[-2] == "closed", said
    sent = [line for line in said if line.startswith("sent ")]
    assert re.findall(r"\d+", " ".join(sent)) == ["1", "2", "3"], said
    assert any(line.startswith("saved ") for line in said)
