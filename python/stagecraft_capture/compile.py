"""Compiled runs: stretches of a graph's steps between its matrix products, fused by inductor into native code
that a run may load.

Products, attention and what draws stay steps: the engine's own products are faster than those that inductor
calls. A stretch's results are tensors with memory of their own. Views of them that other steps read stay
steps. What does not gain by code stays steps, too.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import operator
import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .errors import CaptureError
from .folder import graph_name
from .multiply_adds import sizes_at
from .replay import DTYPES, run_steps, value_of

if TYPE_CHECKING:
    from .aliases import Json, Step


FORMAT = 1
PARTS = ("forward", "backward_input", "backward_weight", "evaluate")
VIEWS = {
    "t",
    "transpose.int",
    "permute",
    "view",
    "_unsafe_view",
    "expand",
    "unsqueeze",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "slice.Tensor",
    "select.int",
    "split.Tensor",
    "split_with_sizes",
    "unbind.int",
    "detach",
    "alias",
}
# Inductor has loops of its own for these. Others it would call, which gains nothing.
FUSED = {
    *(f"{op}.{kind}" for op in ("add", "sub", "mul", "div", "rsub") for kind in ("Tensor", "Scalar")),
    *(f"{op}.{kind}" for op in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")),
    *"""
    neg abs sign reciprocal pow.Tensor_Scalar square rsqrt sqrt exp log log1p sin cos erf maximum minimum
    clamp clamp_min tanh tanh_backward sigmoid sigmoid_backward silu silu_backward gelu gelu_backward relu
    threshold_backward hardtanh hardtanh_backward hardswish hardswish_backward hardsigmoid
    hardsigmoid_backward leaky_relu leaky_relu_backward elu elu_backward softplus softplus_backward
    _softmax _safe_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data mean mean.dim
    sum sum.dim_IntList var.correction var_mean.correction amax amin where.self masked_fill.Scalar
    logical_not logical_and logical_or full_like zeros_like ones_like _to_copy clone cat native_layer_norm
    native_layer_norm_backward native_group_norm native_batch_norm_backward
    _native_batch_norm_legit_functional _native_batch_norm_legit.no_stats
    _native_batch_norm_legit_no_training _fused_rms_norm
    """.split(),
}
LEAST = 2  # steps that compute
# inductor's vectors, and the compiler's -march
MARCH = {"AVX2": ("VecAVX2", "x86-64-v3"), "AVX512": ("VecAVX512", "x86-64-v4")}
GAIN = 0.95  # of the steps' time: a stretch that takes more stays steps
STEP_S = 3e-6  # of Python's own per step, which the engine does not take
TURNS = 15  # of steps and code, behind each comparison
CLOSE = {torch.float32: 1e-4, torch.float64: 1e-10}  # of the largest number of a result
CLOSE_IF_NARROW = 3e-2


@dataclass
class Stretch:
    part: str
    replaced: list  # places of steps that the code stands for
    computed: list  # of those that it computes: views that stay steps, too
    inputs: list  # names of values
    outputs: list


@dataclass
class Code:
    """A library, and how its results differ from those of the steps."""

    path: str
    digest: str  # SHA-256 of its file
    difference: float


@dataclass
class Compiled:
    """What `write` puts into a model folder."""

    capability: str
    threads: int
    graphs: list = field(default_factory=list)  # the index's
    files: dict = field(default_factory=dict)  # SHA-256: path
    difference: float = 0.0
    stretches: int = 0
    interpreted: int = 0  # stretches that do not gain


def name_of(result: str) -> str:
    return result.split(" ", maxsplit=1)[0]


def reads_of(arguments: Any) -> list[str]:
    """Names of values."""
    if isinstance(arguments, str):
        return [arguments]
    if isinstance(arguments, list):
        return [name for argument in arguments for name in reads_of(argument)]
    return []


def short(step: Step) -> str:
    return step[0].removeprefix("aten::")


def kind_of(step: Step) -> str:
    return "view" if short(step) in VIEWS else "fused" if short(step) in FUSED else "other"


def results_of(step: Step) -> list[str]:
    return [name_of(result) for result in step[1] if result is not None]


def stretches_of(graph: Json, part: str) -> list[Stretch]:
    """Between steps of other kinds, those of at least LEAST steps that compute."""
    steps, found, begin = graph[part]["steps"], [], 0
    for end in range(len(steps) + 1):
        if end == len(steps) or kind_of(steps[end]) == "other":
            if sum(kind_of(step) == "fused" for step in steps[begin:end]) >= LEAST:
                found.append(stretch_in(graph, part, list(range(begin, end))))
            begin = end + 1
    return [stretch for stretch in found if stretch.inputs and stretch.outputs]


def stretch_in(graph: Json, part: str, places: list[int]) -> Stretch:
    steps = graph[part]["steps"]
    maker = {name: i for i in places for name in results_of(steps[i])}
    computed = set()  # what computes, and views of its results
    for i in places:
        if kind_of(steps[i]) == "fused" or any(maker.get(name) in computed for name in reads_of(steps[i][2])):
            computed.add(i)
    outside = {
        name for key, names in graph[part].items() if key != "steps" for name in names if name is not None
    }
    outside |= {name for i, step in enumerate(steps) if i not in computed for name in reads_of(step[2])}
    stay = set()
    for i in sorted(computed, reverse=True):
        if kind_of(steps[i]) == "view" and any(name in outside for name in results_of(steps[i])):
            stay.add(i)
            outside |= set(reads_of(steps[i][2]))
    inputs = dict.fromkeys(
        name for i in sorted(computed) for name in reads_of(steps[i][2]) if maker.get(name) not in computed
    )
    outputs = [
        name
        for i in sorted(computed - stay)
        if kind_of(steps[i]) == "fused"
        for name in results_of(steps[i])
        if name in outside
    ]
    return Stretch(part, sorted(computed - stay), sorted(computed), list(inputs), outputs)


def overload_of(name: str) -> Any:
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def module_of(steps: list[Step], stretch: Stretch, b: int) -> torch.fx.GraphModule:
    """What the stretch computes, as inductor takes it."""
    graph = torch.fx.Graph()
    values = {name: graph.placeholder(f"x{k}") for k, name in enumerate(stretch.inputs)}
    for i in stretch.computed:
        name, results, given = steps[i]
        overload = overload_of(name)
        arguments, parameters = (
            [value_of(argument, values, b) for argument in given],
            overload._schema.arguments,
        )
        positional = tuple(a for a, p in zip(arguments, parameters) if not p.kwarg_only)
        node = graph.call_function(
            overload, positional, {p.name: a for a, p in zip(arguments, parameters) if p.kwarg_only}
        )
        several = len(overload._schema.returns) > 1 or "List" in str(overload._schema.returns[0].type)
        for k, result in enumerate(results):
            if result is not None:
                values[name_of(result)] = (
                    graph.call_function(operator.getitem, (node, k)) if several else node
                )
    graph.output(tuple(values[name] for name in stretch.outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def values_of(graph: Json, b: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Of training and of evaluation, from random numbers: tensors as the engine has them, by name."""
    generator = torch.Generator().manual_seed(0)

    def filled(letter: str, type_text: str) -> torch.Tensor:
        dtype, sizes = DTYPES[type_text.split("[", maxsplit=1)[0]], sizes_at(type_text, b)
        if not dtype.is_floating_point:
            return torch.zeros(sizes, dtype=dtype)
        if letter in "uc":  # variances are above 0
            return torch.rand(sizes, generator=generator).add_(0.5).to(dtype)
        return torch.randn(sizes, generator=generator).mul_(0.1 if letter == "p" else 1).to(dtype)

    letters = {
        "in": "inputs",
        "g": "outputs",
        "p": "parameters",
        "u": "buffers",
        "c": "constants",
        "f": "fields",
    }
    given = {
        f"{letter}{i}": filled(letter, t)
        for letter, key in letters.items()
        for i, t in enumerate(graph.get(key, []))
    }
    training, evaluation = dict(given), dict(given)
    with torch.no_grad():
        for part in PARTS[:3]:
            run_steps(graph[part]["steps"], training, b)
        run_steps(graph["evaluate"]["steps"], evaluation, b)
    return training, evaluation


class Compiler:
    """Compiles each distinct stretch once. `folder`: where inductor works."""

    def __init__(self, folder: str, threads: int) -> None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        # seconds
        from .torch_private import CompiledCode, aot_compile, cpp_builder, cpu_vec_isa, inductor_errors

        self.capability = torch.backends.cpu.get_cpu_capability()
        if self.capability not in MARCH:
            raise CaptureError(
                f"--compile is for processors with {' or '.join(MARCH)}; LibTorch uses {self.capability}"
                " here: leave it out"
            )
        vectors, self.march = MARCH[self.capability]
        # Inductor would use more of this processor than its capability says.
        cpu_vec_isa.supported_vec_isa_list[:] = [getattr(cpu_vec_isa, vectors)()]
        native = cpp_builder._get_optimization_cflags
        cpp_builder._get_optimization_cflags = lambda *given, **named: self.portable(native(*given, **named))
        # before libraries are built without LibTorch's: the answer is remembered
        if not cpu_vec_isa.pick_vec_isa():
            raise CaptureError(
                "--compile needs a C++ compiler (g++ 11 or newer) that can build vector code against this"
                " torch: install one, or leave --compile out"
            )
        # The code is linked with no library of LibTorch: a program has them already, and libtorch.so would
        # bring CUDA's.
        ctypes.CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so", ctypes.RTLD_GLOBAL)
        self.threads, self.compile, self.runner = threads, aot_compile, CompiledCode
        self.known: dict[Any, Code | None] = {}
        self.fails = inductor_errors.InductorError

    def portable(self, flags: Any) -> Any:
        compiled, linked = flags
        return [f"march={self.march}" if flag == "march=native" else flag for flag in compiled], linked

    def code(
        self, steps: list[Step], stretch: Stretch, values: dict[str, torch.Tensor], b: int
    ) -> Code | None:
        """None where the stretch does not gain, or where code would not do as its steps do."""
        module = module_of(steps, stretch, b)
        inputs = [values[name] for name in stretch.inputs]
        key = module.code + json.dumps([[str(x.dtype), list(x.shape), list(x.stride())] for x in inputs])
        if key not in self.known:
            self.known[key] = self.made(module, inputs)
        return self.known[key]

    def made(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Code | None:
        with torch.no_grad():
            try:
                path = self.compile(
                    module,
                    tuple(inputs),
                    options={"aot_inductor.link_libtorch": False, "cpp.threads": self.threads},
                )
            except self.fails:  # what it cannot compile stays steps
                return None
            code = self.runner(path, 1)
            difference = compared(code.run(list(inputs)), module(*inputs), inputs)
            if difference is None or not gains(code, module, inputs):
                return None
        with open(path, "rb") as file:
            return Code(path, hashlib.sha256(file.read()).hexdigest(), difference)


def compared(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], inputs: list[torch.Tensor]
) -> float | None:
    """The largest difference, of the largest number of each result; None where that is too much, or where
    results share memory."""
    worst, memory = 0.0, [tensor.untyped_storage().data_ptr() for tensor in inputs]
    for a, b in zip(found, expected):
        storage = a.untyped_storage()
        if (
            a.dtype != b.dtype
            or a.shape != b.shape
            or storage.data_ptr() in memory
            or storage.nbytes() != a.numel() * a.element_size()
        ):
            return None
        memory.append(storage.data_ptr())
        if not b.dtype.is_floating_point:
            if not torch.equal(a, b):
                return None
            continue
        difference = (
            ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)).item()
            if b.numel()
            else 0.0
        )
        if not difference <= CLOSE.get(b.dtype, CLOSE_IF_NARROW):
            return None
        worst = max(worst, difference)
    return worst


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def gains(code: Any, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> bool:
    pairs = [
        (seconds(lambda: code.run(list(inputs))), seconds(lambda: module(*inputs))) for _ in range(TURNS)
    ]
    calls = sum(node.op == "call_function" for node in module.graph.nodes)
    compiled, steps = (statistics.median(side) for side in zip(*pairs))
    return compiled < GAIN * (steps - STEP_S * calls)


def compile_graphs(
    graphs: list[Json],
    sizes: list[int],
    threads: int,
    folder: str,
    show: Callable[[int, int], None] = lambda done, of: None,
) -> Compiled:
    """The code of each of `graphs` for micro-batches of each of `sizes`. `folder`: to work in."""
    compiler = Compiler(folder, threads)
    compiled = Compiled(compiler.capability, threads)
    distinct = {graph_name(graph): graph for graph in graphs}
    work = [(name, graph, b) for b in sizes for name, graph in distinct.items()]
    found = {(name, b): [s for part in PARTS for s in stretches_of(graph, part)] for name, graph, b in work}
    done, before = 0, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name, graph, b in work:
            runs = []
            training, evaluation = values_of(graph, b) if found[name, b] else ({}, {})
            for stretch in found[name, b]:
                show(done, sum(map(len, found.values())))
                done += 1
                values = evaluation if stretch.part == "evaluate" else training
                code = compiler.code(graph[stretch.part]["steps"], stretch, values, b)
                if code is None:
                    compiled.interpreted += 1
                    continue
                compiled.files[code.digest] = code.path
                compiled.difference = max(compiled.difference, code.difference)
                compiled.stretches += 1
                strides = [list(values[n].stride()) for n in stretch.inputs]
                runs.append(
                    {
                        "part": stretch.part,
                        "steps": stretch.replaced,
                        "inputs": stretch.inputs,
                        "strides": strides,
                        "outputs": stretch.outputs,
                        "file": code.digest[:16],
                    }
                )
            compiled.graphs.append({"graph": name, "samples": b, "runs": runs})
    finally:
        torch.set_num_threads(before)
    return compiled


def write(compiled: Compiled, folder: str) -> None:
    """Into a model folder that is being written."""
    os.mkdir(f"{folder}/compiled")
    for digest, path in compiled.files.items():
        shutil.copyfile(path, f"{folder}/compiled/{digest[:16]}.so")
    index = {
        "format": FORMAT,
        "torch": torch.__version__.split("+")[0],
        "device": "cpu",
        "capability": compiled.capability,
        "threads": compiled.threads,
        "difference": compiled.difference,
        "files": {digest[:16]: digest for digest in compiled.files},
        "graphs": compiled.graphs,
    }
    with open(f"{folder}/compiled/index.json", "w", encoding="utf-8") as file:
        json.dump(index, file, indent=1, allow_nan=False)
        file.write("\n")
