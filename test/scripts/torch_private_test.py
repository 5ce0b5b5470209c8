"""Each private interface of PyTorch that the capture uses, tried as it is used. With the next torch, this
says what broke, and what for."""

import contextlib
import inspect
import re

import pytest

torch = pytest.importorskip("torch")

from places import SOURCE
from stagecraft_capture import torch_private as private

CANARIES = {}
ADD = torch.ops.aten.add.Tensor


def canary(*names):
    def keep(function):
        CANARIES.update(dict.fromkeys(names, function))
        return function

    return keep


@canary("FakeTensor", "FakeTensorMode", "unset_fake_temporarily", "disable_current_modes")
def fake():
    mode = private.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        x = torch.empty(1 << 40)
        assert isinstance(x, private.FakeTensor) and x.shape == (1 << 40,)
        with private.unset_fake_temporarily():
            assert torch.ones(2).sum() == 2
        with private.disable_current_modes():
            assert torch.ones(2).tolist() == [1, 1]
    assert isinstance(private.FakeTensorMode.cache, dict)


@canary("set_version_counter")
def versions():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    made = x * y
    y.add_(1).sub_(1)
    private.set_version_counter((y,), (0,))
    made.sum().backward()
    assert y._version == 0 and x.grad.tolist() == [1, 1]


@canary("fake_kernels", "meta_table", "decomposition_table")
def tables():
    assert all(
        isinstance(op, private.OpOverload)
        for op in list(private.meta_table)[:9] + list(private.decomposition_table)[:9]
    )
    from stagecraft_capture.real_strides import OPERATORS, real_strides

    before = dict(private.fake_kernels), dict(private.meta_table)
    x = torch.ones(3, 4).t()
    with real_strides():
        assert all(op in private.fake_kernels for op in OPERATORS)
        with private.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = torch.roll(mode.from_tensor(x), 1, 0)
    assert fake.stride() == torch.roll(x, 1, 0).stride()
    assert (dict(private.fake_kernels), dict(private.meta_table)) == before


@canary("make_contiguous_strides_for")
def strides():
    assert tuple(private.make_contiguous_strides_for((2, 1, 3))) == (3, 3, 1)


@canary(
    "OpOverload",
    "OpOverload._schema",
    "OpOverload.py_kernels",
    "OpOverload._dispatch_cache",
    "HigherOrderOperator",
)
def operators():
    assert isinstance(ADD, private.OpOverload) and isinstance(
        torch.ops.higher_order.cond, private.HigherOrderOperator
    )
    assert [a.name for a in ADD._schema.arguments] == [
        "self",
        "other",
        "alpha",
    ] and not ADD._schema.is_mutable
    assert ADD._schema.name == "aten::add" and ADD._schema.overload_name == "Tensor"
    assert private.DispatchKey.CompositeImplicitAutograd in torch.ops.aten.upsample_bilinear2d.vec.py_kernels
    ADD._dispatch_cache.clear()
    assert ADD(torch.ones(1), 1) == 2


@canary("aot_export_joint")
def joint():
    layer = torch.nn.Linear(3, 2)
    with contextlib.ExitStack() as stack:
        module = private.aot_export_joint(
            stack, layer, (torch.ones(4, 3),), _disable_torch_fn_metadata_mode=True
        ).graph_module
    called = {str(node.target) for node in module.graph.nodes if node.op == "call_function"}
    assert {"aten.addmm.default", "aten.mm.default", "aten.sum.dim_IntList"} <= called, called


@canary("proxy")
def frames():
    assert hasattr(private.proxy, "CapturedTraceback") and private.proxy.TracerBase._filter_traceback_frames
    graph = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=False).graph
    assert any(node.meta.get("stack_trace") for node in graph.nodes)


@canary("lazy_graph_module", "symbolic_trace", "PhiloxStateTracker")
def quick():
    with private.lazy_graph_module._use_lazy_graph_module(True):
        made = torch.fx.symbolic_trace(lambda x: x + 1)
    assert made(torch.ones(1)) == 2
    assert private.symbolic_trace._Patcher.patch_method and private.PhiloxStateTracker.reset


@canary("reset_dynamo")
def dynamo():
    private.reset_dynamo()


@canary("pytree")
def trees():
    x = torch.ones(1)
    flat, about = private.pytree.tree_flatten({"a": (x, 2), "b": [x]})
    assert (
        private.pytree.tree_unflatten(flat, about) == {"a": (x, 2), "b": [x]}
        and len(private.pytree.tree_leaves((x, [x]))) == 2
    )
    assert private.pytree.tree_map_only(torch.Tensor, lambda t: t + 1, (x, 1))[0] == 2


@canary("TorchDispatchMode")
def heard():
    seen = []

    class Hears(private.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Hears():
        torch.ones(1) + 1
    assert ADD in seen


@canary("VF")
def recurrent():
    for name, module in (("lstm", torch.nn.LSTM(2, 2)), ("gru", torch.nn.GRU(2, 2))):
        plain, seen = getattr(private.VF, name), []

        def noted(*given, name=name, plain=plain, seen=seen):
            seen.append(name)
            return plain(*given)

        setattr(private.VF, name, noted)
        try:
            module(torch.ones(3, 1, 2))
        finally:
            delattr(private.VF, name)
        assert seen == [name]


@canary("TensorBase")
def data():
    plain = private.TensorBase.data
    torch.Tensor.data = property(lambda tensor: tensor.detach() + 1, plain.__set__, plain.__delete__)
    try:
        assert torch.ones(1).data == 2
    finally:
        del torch.Tensor.data
    assert torch.ones(1).data == 1


@canary("Tensor._version", "Tensor._is_view", "Module._parameters")
def attributes():
    x = torch.ones(2)
    before = x._version
    x.add_(1)
    assert x._version == before + 1 and x[:1]._is_view() and not x._is_view()
    assert set(torch.nn.Linear(1, 1)._parameters) == {"weight", "bias"}


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@canary(
    "SingleLevelFunction",
    "call_custom_function",
    "fetch_proxies",
    "track_tensor_tree",
    "pre_dispatch_mode",
    "ModeKey",
    "DispatchKey",
    "DispatchKeySet",
    "included_keys",
    "excluded_keys",
    "ForceDispatchKeyGuard",
)
def functions():
    from stagecraft_capture.custom_functions import as_operators

    assert Tripled.setup_context is private.SingleLevelFunction.setup_context
    assert private.pre_dispatch_mode(private.ModeKey.PROXY) is None

    class Holds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.function = torch.nn.Linear(2, 2), Tripled.apply

        def forward(self, x):
            return self.function(self.linear(x))

    with as_operators():
        graph = torch.export.export(Holds(), (torch.ones(1, 2),), strict=False).graph
    calls = [node for node in graph.nodes if node.target is private.call_custom_function]
    assert len(calls) == 1 and calls[0].args[0].endswith("function_0"), graph


@canary("aot_compile", "cpp_builder", "cpu_vec_isa", "inductor_errors", "CompiledCode")
def compiled():
    assert private.cpp_builder._get_optimization_cflags and private.inductor_errors.InductorError
    assert (
        private.cpu_vec_isa.VecAVX2
        and private.cpu_vec_isa.VecAVX512
        and private.cpu_vec_isa.pick_vec_isa
        and isinstance(private.cpu_vec_isa.supported_vec_isa_list, list)
    )
    # scripts.capture_compile runs them
    assert "options" in inspect.signature(private.aot_compile).parameters and private.CompiledCode.run


@canary("is_functorch_wrapped_tensor")
def mapped():
    seen = []
    torch.vmap(lambda x: seen.append(private.is_functorch_wrapped_tensor(x)) or x)(torch.ones(2))
    assert seen == [True] and not private.is_functorch_wrapped_tensor(torch.ones(2))


def stray():
    """Lines elsewhere that name a private interface."""
    for path in sorted((SOURCE / "python").glob("*/*.py")):
        if path.name == "torch_private.py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(
                r"\btorch\._[a-zA-Z]|from torch\.?[\w.]* import .*\b_[a-zA-Z]|from"
                r" torch(\.\w+)*\._|mock.patch.object\(torch",
                line,
            ):
                yield f"{path}:{number}: {line.strip()}: torch_private.py is the place for it"


def test_stray():
    assert not list(stray())


def test_rows():
    """Each has a canary, and each canary a row."""
    assert {*private.TABLE, *private.OF_OBJECTS} == set(CANARIES)


@pytest.mark.parametrize("function", dict.fromkeys(CANARIES.values()), ids=lambda function: function.__name__)
def test_canary(function):
    names = [name for name, its in CANARIES.items() if its is function]
    uses = {
        name: private.TABLE[name].use if name in private.TABLE else private.OF_OBJECTS[name] for name in names
    }
    try:
        function()
    except BaseException as error:
        raise AssertionError(f"torch {torch.__version__}: {error}; of {uses}") from error
