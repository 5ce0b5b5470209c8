"""Functions with a backward of the user's own (torch.autograd.Function), as one operator each of an exported graph.

torch.export would follow their forward alone, and autograd would differentiate that. A straight-through estimator would then train otherwise
than it does in PyTorch. As one operator the function is called again when its layer is differentiated, and its own backward is traced.
"""

import contextlib

import torch
from torch._ops import _get_dispatch_mode_pre_dispatch
from torch.export.custom_ops import _call_custom_autograd_function_in_pre_dispatch as CALL
from torch.fx.experimental.proxy_tensor import _fetch_proxies_and_all_constant_flag, track_tensor_tree
from torch.utils import _pytree as pytree

from .errors import CaptureError

PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Tensor)


KNOWN = []


def name_of_class(function):
    """Under which CALL finds the class: an attribute of this module, so that classes inside of functions and of files are found too."""
    at = next((k for k, known in enumerate(KNOWN) if known is function), len(KNOWN))
    if at == len(KNOWN):
        KNOWN.append(function)
        globals()[f"function_{at}"] = function
    return f"{__name__}.function_{at}"


def graphable(arguments):
    """Whether a graph can hold them. Checkpoints of activations take a function, and mean what autograd makes of its forward."""
    return all(isinstance(a, PLAIN) for a in pytree.tree_leaves(arguments))


def call(plain, function, arguments, named):
    """The function's results, as one operator of the graph that is being traced."""
    if function is torch.utils.checkpoint.CheckpointFunction:
        raise CaptureError("torch.export follows no gradient through torch.utils.checkpoint with use_reentrant=True: give use_reentrant=False, or leave it out (a run chooses itself what it makes again)")
    mode = _get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
    if mode is None or not graphable((arguments, named)):
        return plain(function, *arguments, **named)
    tensors = [a for a in pytree.tree_leaves((arguments, named)) if isinstance(a, torch.Tensor)]
    versions = [t._version for t in tensors]
    key, included = torch._C.DispatchKey.PreDispatch, torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set() | torch._C.DispatchKeySet(key)
    with torch._C._ForceDispatchKeyGuard(included.remove(key), excluded):
        made = plain(function, *arguments, **named)
    if [t._version for t in tensors] != versions:
        raise CaptureError(f"{function.__qualname__}, a torch.autograd.Function, writes to its arguments; let its forward return a new tensor")
    flat, about = pytree.tree_flatten((arguments, named))
    _, proxies, _ = _fetch_proxies_and_all_constant_flag(flat, mode.tracer)
    proxies, named_proxies = pytree.tree_unflatten(proxies, about)
    proxy = mode.tracer.create_proxy("call_function", CALL, (name_of_class(function), *proxies), named_proxies)
    return track_tensor_tree(made, proxy, constant=None, tracer=mode.tracer)


@contextlib.contextmanager
def as_operators():
    """Catches Function.apply in the class that it calls itself: modules may hold `MyFunction.apply` under names of their own."""
    base = torch.autograd.function._SingleLevelFunction
    plain = lambda function, *given, **named: super(base, function).apply(*given, **named)
    base.apply = classmethod(lambda function, *given, **named: call(plain, function, given, named))
    try:
        yield
    finally:
        del base.apply
