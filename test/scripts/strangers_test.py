"""What strangers tried with a pipeline in Python: it has the bits of the loop, or is told in one line."""

import copy
import logging
import pickle
import subprocess

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import ENVIRONMENT, MEASURED_ONCE, STAGECRAFT, require_package

require_package()

import stagecraft as sc

torch.set_num_threads(1)
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(16) % 3


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Scaled(Net):
    """As forecasters that turn the scale of their input back at the end."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x * self.scale) / self.scale


class LossAlone(Net):
    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(super().forward(x), labels)}


class Parts(Net):
    def forward(self, x):
        return list(super().forward(x))


class Hooked(Net):
    def forward(self, x):
        hidden = self.body(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 2)
        return self.head(hidden)


def net():
    torch.manual_seed(0)
    return Net()


def pipeline(module=None, batch=(X, Y), **given):
    given = {"loss": "cross_entropy", "stages": 2, "micro_batches": 4, "threads_per_rank": 1} | given
    given.setdefault("config", MEASURED_ONCE)
    return sc.pipeline(net() if module is None else module, batch, **given)


def in_inference_mode():
    with torch.inference_mode():
        return pipeline(module=Net())


TOLD = {
    "a rate of text": (
        lambda: pipeline().set_lr("1e-3"),
        "set_lr: expected a rate of 0 or more, found '1e-3'",
    ),
    "a rate without end": (lambda: pipeline().set_lr(float("inf")), "found inf"),
    "a function whose rate is none": (
        lambda: pipeline(learning_rate=lambda _: float("nan"))((X, Y)),
        "learning_rate of step 0: expected a rate of 0 or more, found nan",
    ),
    "a function whose rate is below zero": (
        lambda: pipeline(learning_rate=lambda _: -1.0)((X, Y)),
        "found -1.0",
    ),
    "micro-batches of text": (lambda: pipeline(micro_batches="4"), "expected a whole number, found '4'"),
    "one width": (lambda: pipeline(widths=2), r"widths: expected whole numbers as in \[1, 2\], found 2"),
    "cuts of text": (lambda: pipeline(cuts="2"), "cuts: expected whole numbers"),
    "threads of text": (lambda: pipeline(threads_per_rank="1"), "threads_per_rank: expected a whole number"),
    "a plan that is a dict": (lambda: pipeline(plan={}), "plan: expected a path, found a dict"),
    "a config that is a list": (lambda: pipeline(config=[1]), "config: expected a dict"),
    "a config that JSON has not": (lambda: pipeline(config={"x": {1}}), "config: is nothing that JSON has"),
    "a place that is none": (lambda: pipeline().save(None), "save: expected a path, found None"),
    "a run that is none": (lambda: sc.load(None), "load: expected a path, found None"),
    "a module for its state": (
        lambda: pipeline().load_state_dict(net()),
        r"expected a dict by names, found a Net: give its state_dict\(\)",
    ),
    "a dictionary for each sample, as detectors take": (
        lambda: pipeline(batch={"x": X, "targets": [{"boxes": X[i]} for i in range(16)]}),
        '"targets" is a list of 16, expected a tensor: stack what samples have, padded to one size',
    ),
    "bytes of images": (
        lambda: pipeline(batch=(X.to(torch.uint8), Y)),
        r'"x" is torch.uint8, which runs do not have: hand over x.long\(\) or',
    ),
    "a module of inference mode": (in_inference_mode, "was made in inference mode, which nothing trains"),
    "a weight that is read at both ends": (
        lambda: pipeline(module=Scaled()),
        "the model has 1 layer.*; all is one layer: scale is read again behind other weights; layers=PATTERN",
    ),
    "a hook of a gradient": (
        lambda: pipeline(module=Hooked()),
        r'File ".*strangers_test.py", line \d+, in forward .*registers a hook of a gradient',
    ),
    "a part for each sample": (
        lambda: pipeline(
            module=Parts(), loss=lambda output, batch: sum(part.square().mean() for part in output)
        ),
        r"the loss reads \[0\] .* is float32\[3\] for two samples: .*; return one tensor of all samples",
    ),
    "a module that returns its loss alone": (
        lambda: pipeline(module=LossAlone(), batch={"x": X, "labels": Y}, loss=None),
        "the loss reads no tensor of each sample of what LossAlone.forward returns",
    ),
}


@pytest.mark.parametrize("what", TOLD)
def test_wrong_values_are_told_in_one_line(what):
    make, text = TOLD[what]
    with pytest.raises(sc.InputError, match=text) as told:
        make()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_pipeline_is_not_copied(copied):
    with pytest.raises(TypeError, match="a pipeline has threads of its own and is not copied: save"):
        copied(pipeline())


@pytest.mark.parametrize("wrap", [torch.compile, torch.nn.DataParallel])
def test_a_wrapped_module_is_the_one_inside(wrap):
    step, plain = pipeline(wrap(net())), pipeline()
    assert [step((X, Y)).loss for _ in range(3)] == [plain((X, Y)).loss for _ in range(3)]
    wrapped = wrap(net())
    wrapped.load_state_dict(step.state_dict())
    ours, theirs = wrapped.state_dict(), plain.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(ours.values(), theirs.values()))


class Compiled(Net):
    """Compiled in its parts, by each of the three ways."""

    def __init__(self):
        super().__init__()
        self.body[0].compile()
        self.body[2].forward = torch.compile(self.body[2].forward)

    @torch.compile
    def forward(self, x):
        return super().forward(x)


class Codebook(Net):
    """Returns two things, and writes to a frozen parameter, as MONAI's VQVAE does."""

    def __init__(self):
        super().__init__()
        self.codes = torch.nn.Embedding(4, 8)
        self.codes.weight.requires_grad = False

    def forward(self, x):
        hidden = self.body(x)
        near = self.codes((hidden @ self.codes.weight.t()).argmax(1))
        if self.training:
            with torch.no_grad():
                self.codes.weight.data.copy_(self.codes.weight * 0.5 + hidden.mean())
        return self.head(hidden + (near - hidden).detach()), (near.detach() - hidden).square().mean()


def test_frozen_parameters_that_a_forward_writes_are_left_as_they_were():
    torch.manual_seed(0)
    module = Codebook()
    before = copy.deepcopy(module.state_dict())
    step = pipeline(
        module,
        loss=lambda output, batch: torch.nn.functional.cross_entropy(output[0], batch["targets"]) + output[1],
        cache=False,
    )
    for state in (module.state_dict(), step.state_dict()):
        assert all(torch.equal(tensor, before[name]) for name, tensor in state.items())


class Logging(Net):
    """Its first capture makes loggers, "stagecraft" among them, which all loggers reach."""

    log = logging.getLogger(__name__)

    def forward(self, x):
        logging.getLogger(f"{__name__}.{id(x)}").debug("called")
        self.log.debug("a batch")
        return super().forward(x)


class Proxies(torch.nn.Module):
    """Returns features, and a loss that reads weights of its own, as heads of metric learning do."""

    def __init__(self):
        super().__init__()
        self.body, self.proxies = Net().body, torch.nn.Parameter(torch.eye(8)[:3])

    def forward(self, x, labels):
        features = self.body(x)
        alike = torch.nn.functional.normalize(features, dim=1) @ self.proxies.t()
        return {"loss": torch.nn.functional.cross_entropy(alike, labels), "features": features}


def test_a_loss_of_the_modules_own_may_read_weights():
    torch.manual_seed(0)
    module = Proxies()
    theirs = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, fused=True)
    batch = {"x": X, "labels": Y}
    step = pipeline(
        module, batch, loss=lambda output, _: output["loss"], optimizer=sc.AdamW(lr=1e-2), cache=False
    )
    for _ in range(2):
        optimizer.zero_grad()
        losses = [theirs(X[i : i + 4], Y[i : i + 4])["loss"] / 4 for i in range(0, 16, 4)]
        for loss in losses:
            loss.backward()
        optimizer.step()
        assert step(batch).loss == sum(float(loss.detach().double() * 4) * 0.25 for loss in losses)
    weights = theirs.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in step.state_dict().items())


def test_loggers_are_no_state():
    torch.manual_seed(0)
    step, plain = pipeline(Logging(), cache=False), pipeline()
    assert step((X, Y)).loss == plain((X, Y)).loss


def test_what_is_compiled_inside_runs_as_it_was_written():
    torch.manual_seed(0)
    step, plain = pipeline(Compiled(), cache=False), pipeline()
    assert [step((X, Y)).loss for _ in range(3)] == [plain((X, Y)).loss for _ in range(3)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_torch_are_the_callers(mode):
    """A pipeline that is made and stepped in one of them trains all the same."""
    module, twin = net(), pipeline()
    with mode():
        step = pipeline(module, cache=False)
        losses = [step((X, Y)).loss for _ in range(3)]
    assert losses == [twin((X, Y)).loss for _ in range(3)]


def test_a_module_may_be_changed_behind_a_pipelines_back():
    module = net()
    step, twin = pipeline(module), pipeline()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert [step((X, Y)).loss for _ in range(3)] == [twin((X, Y)).loss for _ in range(3)]


def test_what_was_saved_may_be_moved_and_has_no_report(tmp_path):
    step = pipeline()
    losses = [step((X, Y)).loss for _ in range(2)]
    step.save(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    again = sc.load(tmp_path / "moved")
    assert losses[1] > again((X, Y)).loss == step((X, Y)).loss
    done = subprocess.run(
        [STAGECRAFT, "report", tmp_path / "moved"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "has checkpoints and no measured step: there is nothing to report" in done.stderr


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: sc.AdamW(learning_rate=1), 'AdamW() takes no "learning_rate"; did you mean "lr"?'),
        (lambda: sc.SGD(speed=1), "it takes lr, momentum, dampening, weight_decay, nesterov"),
        (lambda: sc.pipeline(Net(), (X, Y), max_grad_norm=1), 'did you mean "gradient_clipping"?'),
        (lambda: sc.pipeline(Net(), (X, Y), microBatches=1), 'did you mean "micro_batches"?'),
        (lambda: sc.profile(Net(), (X, Y), criterion="mse"), 'did you mean "loss"?'),
        (lambda: sc.load("run", stepp=3), 'did you mean "step"?'),
        (lambda: sc.Cluster.of_machines(2, bandwidth=1), 'did you mean "bytes_per_second"?'),
    ],
)
def test_an_argument_that_is_not_there_is_answered_with_the_one_that_was_meant(call, text):
    with pytest.raises(TypeError) as refused:
        call()
    assert text in str(refused.value)


def test_precisions_have_names_of_torch(tmp_path):
    made = sc.pipeline(Net(), (X, Y), loss="cross_entropy", precision=torch.bfloat16, stages=1)
    assert made.config["bf16"]["enabled"]
    for wrong, meant in (("bf16", "bfloat16"), ("half", "float16"), ("bfloat61", "bfloat16")):
        with pytest.raises(sc.InputError, match=f"found '{wrong}'; did you mean .{meant}.") as refused:
            sc.pipeline(Net(), (X, Y), loss="cross_entropy", precision=wrong)
    assert "expected float32, bfloat16, float16" in str(refused.value)


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3)

    def forward(self, words):
        return self.head(self.rows(words))


def test_a_capture_that_fails_speaks_of_the_batch_and_of_arguments():
    words = torch.arange(16) % 5
    with pytest.raises(sc.CaptureError, match=r"the batch has numbers up to 9 in words, 2 in targets$"):
        sc.pipeline(Words(), (words + 5, Y), loss="cross_entropy")
    for given, text in (
        ({"lengths": [0]}, "lengths: '0': expected numbers from 1 on"),
        (
            {"layers": "narow:2"},
            'layers narow:2: is neither auto, narrow:N nor a module.s path: give one; did you mean "narrow"',
        ),
    ):
        with pytest.raises(sc.CaptureError, match=f"^{text}") as refused:
            sc.pipeline(Words(), (words, Y), loss="cross_entropy", **given)
        assert "--" not in str(refused.value)


def test_a_plan_of_another_model_is_called_the_plan():
    plan = sc.pipeline(Net(), (X, Y), loss="cross_entropy", stages=2).plan
    with pytest.raises(sc.InputError, match=r"^plan: /model_fingerprint: the plan is for another model"):
        sc.pipeline(torch.nn.Linear(8, 3), (X, Y), loss="cross_entropy", plan=plan)


def test_a_step_that_is_shown_says_how_to_read_it():
    step = sc.pipeline(Net(), (X, Y), loss="cross_entropy", stages=2)
    shown = {repr(step((X, Y))) for _ in range(3)}
    assert all(".loss and its other fields wait" in text or text.startswith("Step(") for text in shown)
