"""Functions with a backward of the user's own (torch.autograd.Function), as one operator each of an exported
graph.

torch.export would follow their forward alone, and autograd would differentiate that. A straight-through
estimator would then train otherwise than it does in PyTorch. As one operator the function is called again
when its layer is differentiated, and its own backward is traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .errors import CaptureError, place_of
from .in_place import storage
from .torch_private import (
    DispatchKey,
    DispatchKeySet,
    ForceDispatchKeyGuard,
    ModeKey,
    SingleLevelFunction,
    call_custom_function,
    excluded_keys,
    fetch_proxies,
    included_keys,
    pre_dispatch_mode,
    pytree,
    track_tensor_tree,
)

if TYPE_CHECKING:
    from torch import fx


PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Tensor)


WRITES = "stagecraft_writes_to_copies"  # in a node's meta, with the function's name


KNOWN: list[Any] = []
CALLED: list[Any] = []  # functions whose forward runs as one operator: what they call is part of it


def name_of_class(function: Any) -> str:
    """Under which the operator finds the class: an attribute of this module, so that classes inside of
    functions and of files are found too."""
    at = next((k for k, known in enumerate(KNOWN) if known is function), len(KNOWN))
    if at == len(KNOWN):
        KNOWN.append(function)
        globals()[f"function_{at}"] = function
    return f"{__name__}.function_{at}"


def graphable(arguments: Any) -> bool:
    """Whether a graph can hold them. Checkpoints of activations take a function, and mean what autograd makes
    of its forward."""
    return all(isinstance(a, PLAIN) for a in pytree.tree_leaves(arguments))


def call(function: Any, forward: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
    """What `forward` makes of the arguments, as one operator of the graph that is being traced."""
    if function is torch.utils.checkpoint.CheckpointFunction:
        raise CaptureError(
            "torch.export follows no gradient through torch.utils.checkpoint with use_reentrant=True: give"
            " use_reentrant=False, or leave it out (a run chooses itself what it makes again)"
        )
    mode = pre_dispatch_mode(ModeKey.PROXY)
    if mode is None or CALLED or not graphable(arguments):
        return forward()
    tensors = [a for a in pytree.tree_leaves(arguments) if isinstance(a, torch.Tensor)]
    versions = [t._version for t in tensors]
    key, included = DispatchKey.PreDispatch, included_keys()
    excluded = excluded_keys() | DispatchKeySet(key)
    with ForceDispatchKeyGuard(included.remove(key), excluded), called(function):
        made = forward()
        written = {id(t) for t, version in zip(tensors, versions) if t._version != version}
        # An argument that is handed on is told from the argument, as autograd does it. One that is written to
        # and handed on stays itself (mark_dirty).
        handed_on = {id(t) for t in tensors} - written
        made = pytree.tree_map_only(torch.Tensor, lambda t: t.view_as(t) if id(t) in handed_on else t, made)
    flat, about = pytree.tree_flatten(arguments)
    places = [i for i, a in enumerate(flat) if id(a) in written]
    for i in places:
        flat[i] = flat[i].clone()
    _, proxies, _ = fetch_proxies(flat, mode.tracer)
    proxy = mode.tracer.create_proxy(
        "call_function",
        call_custom_function,
        (name_of_class(function), *pytree.tree_unflatten(proxies, about)),
        {},
    )
    if places:
        proxy.node.meta["custom"] = {**proxy.node.meta.get("custom", {}), WRITES: function.__qualname__}
    return track_tensor_tree(made, proxy, constant=None, tracer=mode.tracer)


def refuse_read_again(graph: fx.Graph) -> None:
    """A function that writes to its argument, as TabNet's sparsemax, writes to a copy here. Nobody can tell,
    unless the argument is read again, or is what the model was given."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        name = node.meta.get("custom", {}).get(WRITES)
        if name is None:
            continue
        for copy in (n for n in node.all_input_nodes if n.target == torch.ops.aten.clone.default):
            before = [n for n in graph.nodes if position[n] < position[node]]
            same = [n for n in before if storage(n) == storage(copy.args[0])]
            if any(n.op == "placeholder" for n in same) or any(
                position[user] > position[node] for n in same for user in n.users
            ):
                raise CaptureError(
                    f"{place_of(node)}: {name}, a torch.autograd.Function, writes to its argument, which is"
                    " read again; let its forward return a new tensor"
                )


@contextlib.contextmanager
def called(function: Any) -> Iterator[None]:
    CALLED.append(function)
    try:
        yield
    finally:
        CALLED.pop()


def subclasses(function: Any) -> set[Any]:
    return {below for its in function.__subclasses__() for below in (its, *subclasses(its))}


@contextlib.contextmanager
def as_operators() -> Iterator[None]:
    """Catches each function in its forward: modules may hold `MyFunction.apply` under names of their own, and
    torch 2.15's goes to C++ at once."""
    base = torch.autograd.Function
    own: dict[Any, Any] = {}

    def catch(function: Any) -> None:
        """Without a setup_context of its own, forward gets a context first."""
        contexts = 1 if function.setup_context is SingleLevelFunction.setup_context else 0
        holder = next(c for c in function.__mro__ if "forward" in c.__dict__)
        plain = own.get(holder) or holder.__dict__["forward"]
        own[function] = plain if holder is function else None
        bound = plain.__get__(None, function)
        function.forward = staticmethod(
            lambda *given: call(function, lambda: bound(*given), given[contexts:])
        )

    for function in subclasses(base):
        catch(function)
    base.__init_subclass__ = classmethod(lambda function, **named: catch(function))
    try:
        yield
    finally:
        del base.__init_subclass__
        for function, forward in own.items():
            if forward is None:
                del function.forward
            else:
                function.forward = forward
