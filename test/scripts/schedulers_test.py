"""Schedulers of torch.optim.lr_scheduler given to a pipeline, beside the loop that steps them."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import MEASURED_ONCE, require_package

require_package()

from torch.optim import lr_scheduler

import stagecraft as sc
from stagecraft.schedulers import rates_read

STEPS = 25
torch.set_num_threads(1)


class Slow(lr_scheduler.LRScheduler):
    """One of one's own."""

    def get_lr(self):
        return [base / (1 + self.last_epoch) for base in self.base_lrs]


def warm_then_cosine(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=5), lr_scheduler.CosineAnnealingLR(optimizer, 10)]
    return lr_scheduler.SequentialLR(optimizer, parts, [5])


def chained(optimizer):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    )


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.95),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.7),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lr_scheduler.ConstantLR,
    "LinearLR": lr_scheduler.LinearLR,
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 7),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=STEPS, cycle_momentum=False),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-1, 4, cycle_momentum=False),
    "SequentialLR": warm_then_cosine,
    "ChainedScheduler": chained,
    "one of one's own": Slow,
}


def optimizer_of(parameters, **settings):
    return torch.optim.AdamW(parameters, lr=0.1, fused=True, **settings)


def parameters():
    return [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]


@pytest.mark.parametrize("made_before", [0, 7])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_rates_are_those_of_the_loop(name, made_before):
    """Also where the loop had begun before: then the first rate is the present one."""
    optimizer = optimizer_of(parameters())
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(made_before):
        scheduler.step()
    left = STEPS - made_before
    rates = rates_read(scheduler, optimizer, left)
    expected = []
    for _ in range(left):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert [rates(step) for step in range(left)] == expected
    assert rates(3) == expected[3], "a step is made again behind one that failed"


def test_every_scheduler_of_torch_is_tried():
    """One that a later torch brings is read or refused here first."""
    known = {type(make(optimizer_of(parameters()))).__name__ for make in SCHEDULERS.values()}
    everything = {
        name
        for name, kind in vars(lr_scheduler).items()
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert everything - known - {"LRScheduler", "ReduceLROnPlateau"} == set()


def two_rates(optimizer):
    return lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 1.0 + step])


REFUSED = {
    "the loss decides": (lr_scheduler.ReduceLROnPlateau, "goes by metrics.*set_lr"),
    "momentum goes round": (
        lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=STEPS),
        "changes the optimizer's betas too.*cycle_momentum=False",
    ),
    "too short": (
        lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=STEPS - 5, cycle_momentum=False),
        "OneCycleLR: Tried to step 21 times",
    ),
    "of another optimizer": (lambda _: SCHEDULERS["StepLR"](optimizer_of(parameters())), "another optimizer"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_function_of_the_step_is_refused(what):
    make, text = REFUSED[what]
    optimizer = optimizer_of(parameters())
    scheduler = make(optimizer)
    with pytest.raises(sc.InputError, match=text):
        rates_read(scheduler, optimizer, STEPS)


def test_groups_with_rates_of_their_own_are_refused():
    optimizer = optimizer_of([{"params": parameters()}, {"params": parameters()}])
    with pytest.raises(sc.InputError, match="groups of the optimizer rates of their own"):
        rates_read(two_rates(optimizer), optimizer, STEPS)


def test_the_end_of_a_scheduler_is_told_when_it_comes():
    optimizer = optimizer_of(parameters())
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=4, cycle_momentum=False)
    rates = rates_read(scheduler, optimizer, None)
    assert rates(3) > 0
    with pytest.raises(sc.InputError, match="Tried to step 6 times"):
        rates(5)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    def forward(self, x):
        return self.body(x)


def batches(count=6):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 8, generator=generator), torch.randint(0, 3, (8,), generator=generator))
        for _ in range(count)
    ]


@pytest.mark.parametrize("name", ["SequentialLR", "CosineAnnealingLR"])
def test_a_pipeline_has_the_weights_of_the_loop(name, monkeypatch, tmp_path):
    monkeypatch.setenv("STAGECRAFT_CACHE", str(tmp_path / "captures"))
    torch.manual_seed(0)
    module = Net()
    theirs = copy.deepcopy(module)
    optimizer = optimizer_of(module.parameters())
    given = {"loss": "cross_entropy", "stages": 2, "micro_batches": 1, "threads_per_rank": 1}
    given["config"] = MEASURED_ONCE
    scheduler = SCHEDULERS[name](optimizer)
    step = sc.pipeline(module, batches()[0], optimizer=optimizer, learning_rate=scheduler, **given)
    made = optimizer_of(theirs.parameters())
    follows = SCHEDULERS[name](made)
    for number, batch in enumerate(batches()):
        assert step(batch).learning_rate == made.param_groups[0]["lr"]
        made.zero_grad()
        torch.nn.functional.cross_entropy(theirs(batch[0]), batch[1]).backward()
        made.step()
        follows.step()
        if number == 2:
            step.save(tmp_path / "run")
    weights = step.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in theirs.state_dict().items())
    assert scheduler.last_epoch == 0, "the caller's stays where it is"
    anew = SCHEDULERS[name](optimizer_of(Net().parameters()))
    again = sc.load(tmp_path / "run", learning_rate=anew)
    for batch in batches()[3:]:
        again(batch)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in weights.items())


def test_a_scheduler_that_is_not_given_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("STAGECRAFT_CACHE", str(tmp_path / "captures"))
    module = Net()
    optimizer = optimizer_of(module.parameters())
    SCHEDULERS["StepLR"](optimizer)
    with pytest.warns(UserWarning, match="does not follow unless it is given as learning_rate="):
        sc.pipeline(module, batches()[0], optimizer=optimizer, loss="cross_entropy", stages=2)
