"""What stagecraft.pipeline() refuses, and its steps, each in words that say what was expected."""

import ast
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import require_package

require_package()

import stagecraft as sc
import stagecraft_capture
from pipeline_cases import ByNames, Net, net, pairs, pipeline


class Constant(torch.nn.Module):
    def forward(self, x):
        return x


def vector_loss(output, batch):
    return torch.nn.functional.cross_entropy(output, batch["targets"], reduction="none")


def with_optimizer(make):
    module = net()
    return pipeline(module=module, optimizer=make(module))


WRONG = {
    "a module without weights": (lambda: pipeline(module=Constant()), sc.CaptureError, "has no parameters"),
    "a loss that returns a vector": (
        lambda: pipeline(loss=vector_loss),
        sc.CaptureError,
        "instead of a tensor of one number",
    ),
    "a loss of no name": (lambda: pipeline(loss="crossentropy"), sc.InputError, "cross_entropy, mse"),
    "no loss": (lambda: pipeline(loss=None), sc.InputError, "returns no loss of its own"),
    "an optimizer of another model": (
        lambda: pipeline(optimizer=torch.optim.SGD(net().parameters(), lr=0.1)),
        sc.InputError,
        "are none of the module's",
    ),
    "an optimizer nobody knows": (
        lambda: pipeline(optimizer=torch.optim.Rprop(net().parameters())),
        sc.InputError,
        "Rprop is none that the engine has",
    ),
    "a setting that is not to be had": (
        lambda: with_optimizer(lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True)),
        sc.InputError,
        "amsgrad=True",
    ),
    "an optimizer of part of the model": (
        lambda: with_optimizer(lambda m: torch.optim.AdamW(m.head.parameters())),
        sc.InputError,
        "has no group with body",
    ),
    "an optimizer by a name with a slip": (
        lambda: pipeline(optimizer="AdamV"),
        sc.InputError,
        '"AdamV".*did you mean "Adam',
    ),
    "a schedule by a name with a slip": (
        lambda: pipeline(schedule="1f1v"),
        sc.InputError,
        'did you mean "1f1b"',
    ),
    "more stages than layers": (lambda: pipeline(stages=60), sc.InputError, "60"),
    "a batch that is a tensor": (lambda: pipeline(batch=pairs()[0][0]), sc.InputError, "is a Tensor"),
    "a batch of lists": (lambda: pipeline(batch=([1.0], [2])), sc.InputError, "torch.as_tensor"),
    "a mapping of other names": (
        lambda: pipeline(batch={"y": pairs()[0][0]}),
        sc.CaptureError,
        "no argument has the name y, so 'x' is a dictionary of them",
    ),
    "a mapping of too few names": (
        lambda: pipeline(module=ByNames(), batch={"a": pairs()[0][0]}),
        sc.InputError,
        "forward needs b, and the batch has a",
    ),
    "more inputs than arguments": (
        lambda: pipeline(batch=(pairs()[0], pairs()[0][1])),
        sc.InputError,
        "takes 1 arguments by place, and the batch has 2 inputs",
    ),
    "more micro-batches than samples": (
        lambda: pipeline(micro_batches=40),
        sc.InputError,
        "expected 1 to 16, the samples of a batch, found 40",
    ),
    "a rate below zero": (lambda: pipeline().set_lr(-1), sc.InputError, "0 or more"),
    "a config's key with a slip": (
        lambda: pipeline(config={"pipeline": {"stagez": 2}}),
        sc.InputError,
        'did you mean "stages"',
    ),
    "a module on another device": (
        lambda: pipeline(module=net().to("meta")),
        sc.InputError,
        "is on meta: call module.cpu",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_inputs(what):
    make, kind, text = WRONG[what]
    with pytest.raises(kind, match=text):
        make()


STEPS_REFUSED = {
    "other keys": (lambda x, y: {"x": x, "label": y}, '"label" is nothing that the pipeline reads'),
    "a missing target": (lambda x, y: {"x": x}, '"targets" is missing'),
    "another width": (
        lambda x, y: (x[:, :3], y),
        r"has samples of \[3\], and the pipeline was made for \[16\]",
    ),
    "another type": (lambda x, y: (x.double(), y), "is Double, and the pipeline was made for float32"),
    "unlike rows": (lambda x, y: (x[:4], y), '"x" has 4 samples, |has 16 samples, "x" has 4'),
    "no samples": (lambda x, y: (x[:0], y[:0]), "has no samples"),
    "a class beyond": (lambda x, y: (x, y + 3), "class|beyond|expected"),
    "numbers that are none": (lambda x, y: (x * float("nan"), y), "finite|nan|NaN"),
    "a triple": (lambda x, y: (x, y, y), "is a tuple of 3"),
    "too large a micro-batch": (lambda x, y: [(x, y)], "made for 1 to 4"),
}


def test_a_refused_batch_leaves_everything_as_it_was():
    step, twin = pipeline(), pipeline()
    x, y = pairs()[0]
    for what, (make, text) in STEPS_REFUSED.items():
        with pytest.raises(sc.InputError, match=text) as refused:
            _ = step(make(x, y)).loss
        assert "\n" not in str(refused.value), what
    assert step.steps == 0
    assert [step(batch).loss for batch in pairs()] == [twin(batch).loss for batch in pairs()]


MORE_WRONG = {
    "a rate that is a number": (
        lambda: pipeline(learning_rate=1e-3),
        "learning_rate: is a number, which the optimizer",
    ),
    "a schedule of PyTorch's": (
        lambda: pipeline(learning_rate="cosine"),
        "learning_rate: is a str, expected a function",
    ),
    "a schedule without an end": (
        lambda: pipeline(learning_rate={"type": "WarmupCosineLR", "params": {}}),
        "WarmupCosineLR goes by the steps of the whole training: give steps=",
    ),
    "a loss of PyTorch's": (
        lambda: pipeline(loss=torch.nn.CrossEntropyLoss()),
        "CrossEntropyLoss takes two tensors",
    ),
    "a function of PyTorch's": (
        lambda: pipeline(loss=torch.nn.functional.cross_entropy),
        "cross_entropy takes two tensors",
    ),
    "an optimizer that is not made": (lambda: pipeline(optimizer=sc.AdamW), "'AdamW' is not called yet"),
    "a class of module": (lambda: pipeline(module=Net), "the module is the class Net: give an instance"),
    "no module": (lambda: sc.pipeline(None, pairs()[0]), "the module is a NoneType"),
    "no threads": (lambda: pipeline(threads_per_rank=0), "threads_per_rank: expected 1 or more, found 0"),
    "a precision of no name": (
        lambda: pipeline(precision="bf16"),
        "precision: expected float32, bfloat16, float16",
    ),
}


@pytest.mark.parametrize("what", MORE_WRONG)
def test_more_wrong_inputs(what):
    make, text = MORE_WRONG[what]
    with pytest.raises(sc.InputError, match=text):
        make()


# Of the capture's sources, those that pipeline() does not come to: options, and what they alone ask for.
OF_THE_COMMAND = {"__main__", "arguments", "batch", "command", "compile", "hugging_face", "source", "trial"}


def texts_of(tree):
    """All that a source may say, whatever stands in it for a value; not its docstrings."""
    nodes = list(ast.walk(tree))
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(each.value if isinstance(each, ast.Constant) else "VALUE" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def test_no_message_names_an_option_of_the_command_line():
    from pathlib import Path

    from stagecraft.captured import as_arguments
    from stagecraft_capture.users_code import DRAWN

    option = re.compile(r"--[a-z]")
    said = {
        text
        for source in Path(stagecraft_capture.__file__).parent.glob("*.py")
        if source.stem not in OF_THE_COMMAND
        for text in texts_of(ast.parse(source.read_text(encoding="utf-8")))
        if option.search(text) and text != DRAWN  # which is replaced as a whole
        if not text.startswith("--full ")  # of that option's own pattern
    }
    assert len(said) >= 15  # or the sweep finds nothing
    assert not [each for each in map(as_arguments, said) if option.search(each)]


def test_an_evaluation_has_no_rate():
    step = pipeline()
    step(pairs()[0])
    assert step.evaluate(pairs()[0]).learning_rate is None
