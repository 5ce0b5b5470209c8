"""What users hand to stagecraft-capture: refused in one line that says where and why, or captured; never a
traceback."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors", reason="scripts/setup.sh --models installs it")

from capture_mistakes import REFUSED as MISTAKES
from forked import stagecraft_capture
from places import SOURCE
from stagecraft_capture import source

torch.set_num_threads(1)
WRONG = f"{SOURCE}/test/data/captured/wrong.py"
NUMBERS = ("--input", "8")
Y = ("--field", "y=f32[5]")


@pytest.fixture(scope="module", autouse=True)
def within(tmp_path_factory):
    """A folder with files that cannot be imported, in which all tests here work."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("files"))
    files()
    yield
    os.chdir(before)


def files():
    for name, text in (
        ("raises", "import torch\nraise RuntimeError('no GPU here')\n"),
        ("syntax", "def build(:\n"),
        ("misses", "import no_such_module_xyz\n"),
        ("exits", "import sys\nsys.exit('usage: train.py DATA')\n"),
        ("empty", ""),
        ("binary", "\0"),
    ):
        Path(f"{name}.py").write_text(text)
    for name, text in (
        ("broken", "{"),
        ("no_type", "{}"),
        ("strange", '{"model_type": "no-such-type"}'),
        ("list", "[1]"),
    ):
        Path(f"{name}.json").write_text(text)


def line_of(text):
    """Where wrong.py has it, as refusals say it; it has it once."""
    before, _ = Path(WRONG).read_text().split(text)
    return f"line {before.count(chr(10)) + 1}"


# Name, what is captured (a name in wrong.py, or FILE.py:NAME), further arguments, words of the line.
REFUSED = [
    ("two tensors", "two_tensors", NUMBERS, "returns 2 tensors of trained numbers", "--loss FILE.py:NAME"),
    ("None", "nothing", NUMBERS, "returns None"),
    ("a number of Python", "number_of_python", NUMBERS, "returns int"),
    (
        "one number",
        "one_number",
        NUMBERS,
        "one number for the whole batch: return the output",
        "--loss FILE.py:NAME",
    ),
    ("classes", "classes", NUMBERS, "returns int64[2]: return the floating-point numbers"),
    ("a detached output", "detached", NUMBERS, "no weight of Net has a gradient"),
    ("inference mode", "inferred", NUMBERS, "no weight of Net has a gradient", "inference_mode"),
    (
        "an exception",
        "fails",
        NUMBERS,
        "wrong.py",
        line_of('raise KeyError("temperature")'),
        "in broken",
        "the model fails on samples of x of float32[2, 8]: KeyError: 'temperature'",
    ),
    ("sizes that do not fit", "wrong_sizes", NUMBERS, "wrong.py", "RuntimeError: ", "mat1 and mat2 shapes"),
    ("an assertion", "asserts", NUMBERS, "in broken_assertion", "AssertionError: only 15 features"),
    ("the end of the process", "exits", NUMBERS, "SystemExit: 3 (it ends the process)"),
    ("recursion", "recursion", NUMBERS, "wrong.py", "RecursionError"),
    (
        "other sizes than the model's",
        "plain",
        ("--input", "9"),
        "the model fails on samples of x of float32[2, 9]",
    ),
    (
        "tokens for numbers",
        "plain",
        ("--sequence", "8", "--vocabulary", "5"),
        "the model fails on samples of x of int64[2, 8]",
    ),
    ("a branch by numbers", "branch_by_numbers", NUMBERS, "wrong.py", "depends on the batch's numbers"),
    (
        "a number of the batch",
        "number_of_batch",
        NUMBERS,
        "wrong.py",
        line_of("number_of_batch = "),
        "depends on the batch's numbers",
    ),
    (
        "a size of the batch",
        "size_of_batch",
        NUMBERS,
        "wrong.py",
        line_of("size_of_batch = "),
        "depends on the batch's numbers",
    ),
    (
        "a branch within a loss that is a module",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:by_a_module"),
        "wrong.py",
        line_of("output.detach().sum() > 0"),
        "depends on the batch's numbers",
    ),
    (
        "a draw of Python",
        "draws_of_python",
        NUMBERS,
        "wrong.py",
        line_of("return x * random.random()") + ", in draw_of_python",
        "draws from Python's random",
        "draw with torch.rand",
    ),
    (
        "a branch on the number of samples",
        "many_samples",
        NUMBERS,
        "wrong.py",
        line_of("many_samples = ") + ", in <lambda>",
        "with micro-batches of 2, 3 and 96 samples",
        "a run has one graph",
    ),
    (
        "an iterator",
        "counts",
        NUMBERS,
        "wrong.py",
        line_of("return Net(lambda x: x * next(numbers))") + ", in <lambda>",
        "in one forward and the next",
        "register_buffer",
    ),
    (
        "a backward that raises",
        "raises_backwards",
        NUMBERS,
        "wrong.py",
        line_of('return g * {}["scale"]') + ", in backward",
        "cannot be differentiated: KeyError: 'scale'",
    ),
    ("numpy", "numpy_inside", NUMBERS, "wrong.py", "with operators of torch"),
    ("**fields", "Keywords", NUMBERS, "Keywords.forward takes its batch by names", "--input x=f32[8]"),
    (
        "a dictionary without its names",
        "Whole",
        NUMBERS,
        line_of('return self.b(self.a(batch["x"]))') + ", in forward",
        "'batch' is a tensor, and is read as a dictionary",
        "name its entries, the input first, as in --input x=f32[8] --field mask=bool[8]",
    ),
    (
        "a forward that evaluation ends",
        "Detections",
        NUMBERS,
        line_of("return sum(found.values())") + ", in forward",
        "the model fails after eval(), not in training, on samples of x of float32[2, 8]: AttributeError",
        "'list' object has no attribute 'values'",
    ),
    (
        "an input of another name",
        "plain",
        ("--input", "images=f32[8]"),
        "no argument has the name images, so 'x' is a dictionary of them",
        "must be Tensor, not dict",
    ),
    ("an input without sizes", "Whole", ("--input", "x=8"), "--input x=8: expected NAME=TYPE[SIZES]"),
    ("a field that is not given", "Needs", NUMBERS, "needs 'mask': give --field mask="),
    ("no forward", "NoForward", NUMBERS, "NoForward has no forward: write one that takes"),
    ("no argument", "NoArgument", NUMBERS, "NoArgument.forward takes no argument"),
    ("all frozen", "frozen", NUMBERS, "all weights of Net are frozen", "model.a.weight.requires_grad_()"),
    ("no parameters", "no_parameters", NUMBERS, "Sequential has no parameters"),
    (
        "partly float64",
        "half_of_it_float64",
        NUMBERS,
        "Net has weights of float32, float64, and a run computes in one type: call .float()",
    ),
    (
        "float64 that shall be narrow",
        "float64",
        (*NUMBERS, "--dtype", "bfloat16"),
        "Net has weights of float64 and --dtype is bfloat16",
    ),
    ("a lazy module", "lazy", NUMBERS, "0.weight has no sizes yet"),
    ("on meta", "on_meta", NUMBERS, "a.weight is on the device meta", "--no-weights"),
    ("TorchScript", "scripted", NUMBERS, "is TorchScript"),
    ("complex weights", "complex_weights", NUMBERS, "extra is complex"),
    ("a sparse buffer", "sparse_buffer", NUMBERS, "adjacency is sparse"),
    ("checkpoint, reentrant", "reentrant", NUMBERS, "wrong.py", "give use_reentrant=False"),
    ("a function that raises", "raises", NUMBERS, "in raises", "ValueError: no such size"),
    (
        "a function with arguments",
        "takes_arguments",
        NUMBERS,
        "takes_arguments",
        "missing 1 required positional argument",
    ),
    (
        "a function that returns a number",
        "returns_a_number",
        NUMBERS,
        "returns a int; expected a torch.nn.Module",
    ),
    ("a number", "a_number", NUMBERS, "is a int; expected a torch.nn.Module"),
    ("a module of Python", "nn", NUMBERS, "is a module; expected"),
    ("no such name", "no_such_name", NUMBERS, "has no 'no_such_name'; it has random, torch"),
    ("no such file", "none.py:build", NUMBERS, "none.py: there is no such file"),
    ("no file of Python", "model.pt:build", NUMBERS, "expected FILE.py:NAME"),
    (
        "an import that raises",
        "raises.py:build",
        NUMBERS,
        "raises.py cannot be imported: RuntimeError: no GPU here",
        "line 2",
    ),
    ("a syntax error", "syntax.py:build", NUMBERS, "syntax.py", "line 1", "SyntaxError"),
    (
        "a module that is missing",
        "misses.py:build",
        NUMBERS,
        "no_such_module_xyz is missing: ",
        "pip install no_such_module_xyz",
    ),
    (
        "a script",
        "exits.py:build",
        NUMBERS,
        "exits.py cannot be imported: SystemExit: usage: train.py DATA",
        "line 2",
    ),
    ("an empty file", "empty.py:build", NUMBERS, "empty.py: has no 'build'; it has nothing"),
    ("a binary file", "binary.py:build", NUMBERS, "binary.py cannot be imported"),
    (
        "a loss that reads a field that is not given",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:reads_mask"),
        line_of('return (output * batch["mask"]).mean()') + ", in reads_mask",
        "the loss reads 'mask'",
        "give --field mask=TYPE[SIZES], as in mask=f32[1,32,32]",
        "for one class of ten per sample, mask=i64[]<10",
    ),
    (
        "a loss of several numbers",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:not_reduced"),
        "the loss returns a Tensor[2, 5]",
    ),
    (
        "a loss that raises",
        "plain",
        (*NUMBERS, *Y[:1], "y=i64[3]", "--loss", f"{WRONG}:loss_raises"),
        "in loss_raises",
        line_of('return F.cross_entropy(output, batch["y"])'),
        "the loss fails on samples of x of float32[2, 8], y of int64[2, 3]",
    ),
    (
        "a loss without the batch",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:loss_without_batch"),
        "loss_without_batch() takes 1 positional argument but 2 were given",
    ),
    (
        "a loss of Python",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:loss_of_python"),
        "the loss returns a float instead of",
    ),
    (
        "a loss of torch",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:loss_module"),
        "is a CrossEntropyLoss of two tensors",
        "loss_module(output, batch['targets'])",
    ),
    (
        "a loss with parameters",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:learned_loss"),
        "wrong.py",
        line_of("return (output * self.scale).mean()") + ", in forward",
        "the loss has parameters (",
        "scale); make them the model's",
    ),
    (
        "a class of losses",
        "plain",
        (*NUMBERS, "--loss", f"{WRONG}:LossClass"),
        "is a class; expected a function",
    ),
    (
        "no such loss",
        "plain",
        (*NUMBERS, "--loss", "l1"),
        "--loss l1: expected cross_entropy, mse or FILE.py:NAME",
    ),
    (
        "a field of nothing",
        "Needs",
        (*NUMBERS, "--field", "mask=f32[0]"),
        "--field mask=f32[0]: expected sizes and a bound of 1",
    ),
    ("integers below 0", "Needs", (*NUMBERS, "--field", "mask=i64[5]<0"), "expected sizes and a bound of 1"),
    (
        "a field without a type",
        "Needs",
        (*NUMBERS, "--field", "mask=5"),
        "--field mask=5: expected NAME=TYPE[SIZES]",
    ),
    (
        "samples beyond the memory",
        "plain",
        ("--input", "8,100000000000000"),
        "8 samples of x [8, 100000000000000] cannot be drawn",
    ),
    ("sizes below 1", "plain", ("--input", "8,-1"), "--input 8,-1: expected sizes"),
    (
        "tokens below 1",
        "plain",
        ("--sequence", "-1", "--vocabulary", "5"),
        "--sequence: '-1': expected a number from 1 on",
    ),
    (
        "a vocabulary below 1",
        "plain",
        ("--sequence", "8", "--vocabulary", "-5"),
        "--vocabulary: '-5': expected a number from 1 on",
    ),
    ("a seed that is no seed", "plain", (*NUMBERS, "--seed", str(2**70)), "--seed: "),
    (
        "neither numbers nor tokens",
        "plain",
        (),
        "give --input SIZES for numbers, or --sequence N and --vocabulary N",
    ),
    (
        "layers that are none",
        "plain",
        (*NUMBERS, "--layers", "c.*"),
        "--layers c.*: no module has such a path",
    ),
    ("more layers than there are", "plain", (*NUMBERS, "--layers", "narrow:99"), "can be cut into"),
    ("no such config", None, ("--hf", "none.json", "--sequence", "8"), "none.json"),
    (
        "a name on the Hub",
        None,
        ("--hf", "meta-llama/Llama-3.2-1B", "--sequence", "8"),
        "hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B",
    ),
    (
        "a broken config",
        None,
        ("--hf", "broken.json", "--sequence", "8"),
        "broken.json: cannot be read as a config",
    ),
    (
        "a config without a type",
        None,
        ("--hf", "no_type.json", "--sequence", "8"),
        'no_type.json: has no "model_type"',
    ),
    ("a config that is a list", None, ("--hf", "list.json", "--sequence", "8"), "list.json"),
    (
        "a config of no known type",
        None,
        ("--hf", "strange.json", "--sequence", "8"),
        "strange.json: transformers ",
        "knows no model of type 'no-such-type'",
    ),
    ("no such folder", "plain", (*NUMBERS, "-o", "no/such/x"), "-o no/such/x: there is no folder"),
]

# Captured, or refused in one line: what it is now is tested elsewhere.
NO_TRACEBACK = [
    ("a buffer that is copied to", "Remembers", NUMBERS),
    ("an embedding of a largest norm", "max_norm", ("--sequence", "8", "--vocabulary", "20")),
    ("a parametrized convolution", "normed_convolution", ("--input", "3,12")),
    ("writes to its input", "writes_input", NUMBERS),
]

CAPTURED = [
    ("torch.compile", "optimized", NUMBERS),
    ("torch.compile of a layer", "optimized_inside", NUMBERS),
    ("DataParallel", "parallel", NUMBERS),
    ("*xs", "Rest", NUMBERS),
    ("**fields", "Keywords", ("--input", "x=f32[8]")),
    ("an argument by place", "ByPlace", NUMBERS),
    ("a dictionary", "Whole", ("--input", "x=f32[8]")),
    ("a loss of two samples", "plain", (*NUMBERS, *Y, "--loss", f"{WRONG}:of_two_samples")),
    ("the loss of Poisson", "plain", (*NUMBERS, *Y, "--loss", f"{WRONG}:poisson")),
]


def run(of, arguments):
    source = [] if of is None else [of if ":" in of else f"{WRONG}:{of}"]
    output = [] if "-o" in arguments else ["-o", "made"]
    return stagecraft_capture(*source, *arguments, *output)


def cases(table):
    return [pytest.param(*how, id=name) for name, *how in table]


@pytest.mark.parametrize("case", [pytest.param(case, id=case[0]) for case in [*REFUSED, *MISTAKES]])
def test_refused(case):
    _, of, arguments, *words = case
    done = run(of, arguments)
    lines = done.stderr.splitlines()
    line = lines[-1] if lines else ""
    assert done.returncode == 2, done.stderr + done.stdout
    assert len(lines) == 1, done.stderr
    assert line.startswith("stagecraft-capture: ")
    for word in words:
        assert word in line
    assert "defect" not in line
    assert not os.path.exists("made")


@pytest.mark.parametrize(("of", "arguments"), cases(NO_TRACEBACK))
def test_without_traceback(of, arguments):
    done = run(of, arguments)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1, done.stderr


@pytest.mark.parametrize(("of", "arguments"), cases(CAPTURED))
def test_captured(of, arguments):
    done = run(of, arguments)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "written to made" in done.stdout
    with safetensors.safe_open("made/weights.safetensors", "pt") as weights:
        names = list(weights.keys())
    assert not [n for n in names if "_orig_mod" in n or n.startswith("module.")], names


def test_what_nobody_foresaw(monkeypatch):
    """A defect of the capture's own: one line with the place in the user's file, exit code 1, and the
    traceback for who asks."""

    def fail(*given):
        raise LookupError("no idea\nof this")

    monkeypatch.setattr(source, "refuse_result", fail)
    done = run("plain", NUMBERS)
    assert done.returncode == 1
    assert done.stderr.startswith("stagecraft-capture: ")
    assert done.stderr.endswith(
        "LookupError: no idea; this is a defect of stagecraft-capture: --traceback prints where it comes"
        " from\n"
    )
    assert done.stderr.count("\n") == 1
    done = run("plain", (*NUMBERS, "--traceback"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "in fail" in done.stderr
