"""Every private interface of PyTorch that the capture uses, and what for. No other file names one. All are
there in torch 2.11 and 2.15; none is promised to anybody, so with the next torch
test/scripts/torch_private_test.py, which tries each as the capture uses it, says which broke."""

import importlib
from typing import Any, NamedTuple

from stagecraft_tools.torch_versions import installed

from .errors import CaptureError


class Private(NamedTuple):
    module: str
    attribute: str
    use: str


TABLE = {
    # Tensors that have types and no numbers
    "FakeTensor": Private(
        "torch._subclasses", "FakeTensor", "parameters of models that are larger than memory"
    ),
    "FakeTensorMode": Private(
        "torch._subclasses", "FakeTensorMode", "the same, and its cache, which lives as long as a capture"
    ),
    "unset_fake_temporarily": Private(
        "torch._subclasses.fake_tensor",
        "unset_fake_temporarily",
        "asks real kernels in the middle of a trace",
    ),
    "disable_current_modes": Private(
        "torch.utils._python_dispatch",
        "_disable_current_modes",
        "computes with real tensors in the middle of a trace",
    ),
    "fake_kernels": Private(
        "torch._subclasses.fake_impls", "op_implementations_dict", "strides that fake kernels tell wrongly"
    ),
    "meta_table": Private(
        "torch._decomp", "meta_table", "the same, of operators that are written out as others"
    ),
    "decomposition_table": Private("torch._decomp", "decomposition_table", "what those are written out as"),
    "make_contiguous_strides_for": Private(
        "torch._prims_common", "make_contiguous_strides_for", "strides of a new tensor, of sizes of 1 too"
    ),
    # Operators of graphs
    "OpOverload": Private("torch._ops", "OpOverload", "tells operators from other calls"),
    "HigherOrderOperator": Private(
        "torch._ops", "HigherOrderOperator", "refuses conditions and loops in graphs"
    ),
    "is_functorch_wrapped_tensor": Private(
        "torch._C._functorch", "is_functorch_wrapped_tensor", "refuses functions that are mapped (torch.vmap)"
    ),
    # Tracing
    "aot_export_joint": Private(
        "torch._functorch.aot_autograd",
        "aot_export_joint_with_descriptors",
        "a layer's forward and backward as one graph: the heart",
    ),
    "proxy": Private(
        "torch.fx",
        "proxy",
        "CapturedTraceback and TracerBase._filter_traceback_frames: where in the user's Python an operator"
        " comes from",
    ),
    "lazy_graph_module": Private(
        "torch.fx", "_lazy_graph_module", "writes no Python for graphs that nobody calls"
    ),
    "symbolic_trace": Private("torch.fx", "_symbolic_trace", "_Patcher: leaves torch.nn.Module as it is"),
    "PhiloxStateTracker": Private(
        "torch._decomp.decompositions_for_rng",
        "PhiloxStateTracker",
        "makes no state of random numbers that no graph holds",
    ),
    "reset_dynamo": Private("torch._dynamo", "reset", "forgets what torch.cond compiled in eager mode"),
    "pytree": Private("torch.utils", "_pytree", "tensors within tuples, lists and dicts"),
    "TorchDispatchMode": Private(
        "torch.utils._python_dispatch", "TorchDispatchMode", "hears each operator of an eager forward"
    ),
    "set_version_counter": Private(
        "torch._C._autograd",
        "_unsafe_set_version_counter",
        "numbers that are put back are those that an earlier forward has seen",
    ),
    # What a graph must follow otherwise than torch.export would
    "VF": Private("torch", "_VF", "what torch.nn.LSTM and GRU call: they become operators"),
    "TensorBase": Private("torch._C", "TensorBase", "the property `data`: it becomes a detach"),
    "SingleLevelFunction": Private(
        "torch.autograd.function",
        "_SingleLevelFunction",
        "whether a function of the user's has a setup_context",
    ),
    "call_custom_function": Private(
        "torch.export.custom_ops",
        "_call_custom_autograd_function_in_pre_dispatch",
        "such a function as one operator",
    ),
    "fetch_proxies": Private(
        "torch.fx.experimental.proxy_tensor",
        "_fetch_proxies_and_all_constant_flag",
        "the same: its arguments in the graph",
    ),
    "track_tensor_tree": Private(
        "torch.fx.experimental.proxy_tensor", "track_tensor_tree", "the same: its results"
    ),
    "pre_dispatch_mode": Private(
        "torch._ops", "_get_dispatch_mode_pre_dispatch", "the same: whether a graph is being traced"
    ),
    "ModeKey": Private("torch._C", "_TorchDispatchModeKey", "the same"),
    "DispatchKey": Private("torch._C", "DispatchKey", "the same, and kernels in Python"),
    "DispatchKeySet": Private("torch._C", "DispatchKeySet", "the same"),
    "included_keys": Private("torch._C", "_dispatch_tls_local_include_set", "the same"),
    "excluded_keys": Private("torch._C", "_dispatch_tls_local_exclude_set", "the same"),
    "ForceDispatchKeyGuard": Private(
        "torch._C", "_ForceDispatchKeyGuard", "the same: within it, nothing is traced"
    ),
    # --compile
    "aot_compile": Private("torch._inductor", "aot_compile", "compiles a stretch of a graph"),
    "cpp_builder": Private(
        "torch._inductor",
        "cpp_builder",
        "_get_optimization_cflags: code for each processor of a capability, not for this one",
    ),
    "cpu_vec_isa": Private("torch._inductor", "cpu_vec_isa", "the vector instructions of that capability"),
    "inductor_errors": Private("torch._inductor", "exc", "what it cannot compile stays as it is"),
    "CompiledCode": Private("torch._C._aoti", "AOTIModelContainerRunnerCpu", "runs it, to compare"),
}

# Attributes of objects, which files name as they are.
OF_OBJECTS = {
    "OpOverload._schema": "names of arguments, and which are written to",
    "OpOverload.py_kernels": "keeps operators that tracing would write out in Python",
    "OpOverload._dispatch_cache": "the same",
    "Tensor._version": "whether a tensor was written to",
    "Tensor._is_view": "whether it shares memory with another",
    "Module._parameters": "parameters that take no memory while a module is built",
}


def __getattr__(name: str) -> Any:
    """One of TABLE, imported when it is first asked for: inductor takes seconds."""
    if name not in TABLE:
        raise AttributeError(f"module {__name__} has no {name}")
    row = TABLE[name]
    try:
        holder = importlib.import_module(row.module)
        found = (
            getattr(holder, row.attribute)
            if hasattr(holder, row.attribute)
            else importlib.import_module(f"{row.module}.{row.attribute}")
        )
    except ImportError as error:
        raise CaptureError(
            f"torch {installed()} has no {row.module}.{row.attribute}, which a capture needs ({row.use}):"
            " install the torch that scripts/setup.sh does"
        ) from error
    globals()[name] = found
    return found
