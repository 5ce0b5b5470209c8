"""Steps of a pipeline that are under way while the program goes on."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import BUILD, MEASURED_ONCE, require_package

require_package()

import stagecraft as sc

SAMPLES, WIDTH = 64, 128
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(8))
        )
        self.head = torch.nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.body(x))


def batches(count, samples=SAMPLES):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(samples, WIDTH, generator=generator),
            torch.randint(0, 3, (samples,), generator=generator),
        )
        for _ in range(count)
    ]


def pipeline(**given):
    torch.manual_seed(0)
    given = {"loss": "cross_entropy", "stages": 2, "micro_batches": 4, "threads_per_rank": 1} | given
    given["config"] = MEASURED_ONCE | given.get("config", {})
    return sc.pipeline(Net(), batches(1)[0], **given)


def bad():
    x, y = batches(1)[0]
    return x * float("inf"), y


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_loaders_buffer_may_be_written_to_again(norm, stages):
    """The bits are those of steps one by one, whatever the program does with its tensors meanwhile."""
    given = {"stages": stages, "config": {"gradient_norm": norm}}
    ahead, one_by_one = pipeline(**given), pipeline(**given)
    x, y = (torch.empty_like(tensor) for tensor in batches(1)[0])
    expected = [one_by_one(batch).loss for batch in batches(30)]
    steps = []
    for inputs, targets in batches(30):
        x.copy_(inputs)
        y.copy_(targets)
        steps.append(ahead((x, y)))
        x.fill_(float("nan"))
        y.fill_(7)
    assert [step.loss for step in steps] == expected
    assert [step.step for step in steps] == list(range(30))
    ours, theirs = ahead.state_dict(), one_by_one.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_a_step_returns_before_it_is_over():
    step = pipeline()
    assert step(batches(1)[0]).loss > 0
    large = batches(1, SAMPLES)[0]
    began = time.perf_counter()
    steps = [step(large) for _ in range(2)]
    handed = time.perf_counter() - began
    assert not steps[1].is_over
    assert repr(steps[1]) == ("<a stagecraft.Step that is under way: .loss and its other fields wait for it>")
    _ = steps[1].loss
    whole = time.perf_counter() - began
    assert steps[0].is_over
    assert steps[1].is_over
    assert handed < whole / 2
    assert repr(steps[1]).startswith("Step(step=2, loss=")


def test_what_a_step_is():
    step = pipeline()
    made = step(batches(1)[0])
    with pytest.raises(AttributeError, match="a step has no losses; it has learning_rate, loss, "):
        _ = made.losses
    again = pickle.loads(pickle.dumps(made))
    assert again == made == copy.deepcopy(made)
    assert isinstance(again, sc.Step)
    found = []
    reader = threading.Thread(target=lambda: found.append(made.norm))
    reader.start()
    reader.join()
    assert found == [made.norm]


REST = {
    "state_dict": lambda step, _: step.state_dict(),
    "evaluate": lambda step, _: step.evaluate(batches(1)[0]),
    "save": lambda step, folder: step.save(folder / "run"),
    "load_state_dict": lambda step, _: step.load_state_dict(step.state_dict()),
    "steps": lambda step, _: step.steps,
    "close": lambda step, _: step.close(),
    "another step": lambda step, _: [step(batches(1)[0]) for _ in range(3)],
    "a batch that is refused": lambda step, _: step([1]),
    "the end of a block": lambda step, _: step.__exit__(None, None, None),
}


@pytest.mark.parametrize("what", REST)
def test_an_error_that_nobody_read_is_raised_by_the_next_call(what, tmp_path):
    step = pipeline()
    assert step(batches(1)[0]).loss > 0
    failed = step(bad())
    with pytest.raises(sc.NotFiniteError, match="step 2: "):
        REST[what](step, tmp_path)
    with pytest.raises(sc.NotFiniteError, match="step 2: "):
        _ = failed.loss


def test_an_error_that_was_read_is_raised_once_and_steps_behind_it_were_not_made():
    step, twin = pipeline(), pipeline()
    failed, behind = step(bad()), step(batches(1)[0])
    for each in (failed, behind):
        with pytest.raises(sc.NotFiniteError, match="step 1: "):
            _ = each.loss
    assert step.steps == 0
    assert [step(batch).loss for batch in batches(4)] == [twin(batch).loss for batch in batches(4)]


def test_rates_go_by_the_steps_that_are_begun():
    step = pipeline(learning_rate=lambda number: 1e-3 * (1 + number))
    assert [made.learning_rate for made in [step(batch) for batch in batches(5)]] == [
        1e-3 * (1 + number) for number in range(5)
    ]


def test_a_pipeline_that_is_dropped_ends_its_steps_and_tells_an_error_nobody_read(capsys, monkeypatch):
    step = pipeline()
    kept = step(batches(1)[0])
    del step
    gc.collect()
    assert kept.is_over
    assert kept.loss > 0
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    step = pipeline()
    step(bad())
    del step
    gc.collect()
    assert [each.exc_type for each in told] == [sc.NotFiniteError]


def test_a_fork_leaves_steps_to_its_parent():
    step = pipeline()
    made = [step(batch) for batch in batches(2)]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: step(batches(1)[0]), step.state_dict, lambda: step.steps):
            try:
                call()
            except sc.InputError as error:
                refused += "is a fork of the one that made the pipeline" in str(error)
        del step, made
        gc.collect()
        os._exit(3 - refused)
    assert os.waitpid(child, 0)[1] == 0
    assert step(batches(1)[0]).loss > 0


class Log:
    def __init__(self):
        self.steps, self.evaluations = [], []

    def step(self, made):
        self.steps.append(made.step)

    def evaluation(self, made):
        self.evaluations.append((len(self.steps), made.loss))

    def close(self):
        self.steps.append("closed")


def test_logs_get_each_step_in_order_and_wait_for_none():
    step = pipeline()
    log = Log()
    step._logs.append(log)
    for batch in batches(4):
        step(batch)
    assert len(log.steps) < 4 or not step._to_log
    step.evaluate(batches(1)[0])
    assert log.evaluations[0][0] == 4
    failed = step(bad())
    while not failed.is_over:
        time.sleep(0.001)
    with pytest.raises(sc.NotFiniteError):
        step.close()
    assert log.steps == [0, 1, 2, 3, "closed"]


def test_an_error_is_no_defect_when_ranks_end():
    """What was under way goes with the ranks, in silence."""
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import under_way_test as tests
import stagecraft as sc
step = tests.pipeline()
for _ in range(3):
    try:
        print(step(tests.bad()).loss)
    except sc.NotFiniteError as error:
        print("told")
assert step(tests.batches(1)[0]).loss > 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script, os.path.dirname(__file__)],
        env={**os.environ, "PYTHONPATH": f"{BUILD / 'python'}:{os.path.dirname(__file__)}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["told"] * 3
    assert "defect" not in done.stderr + done.stdout
