"""Multiply-adds of one sample's forward, from a graph file: those of matrix products, convolutions and
attention.

Additions, norms and activations do not count. Attention counts scores and mixing whole, as our own layers do,
though causal kernels leave their future half out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aliases import Json


# Of the operator's name without its overload: the arguments that are multiplied.
PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::mv": (0, 1),
    "aten::dot": (0, 1),
    "aten::vdot": (0, 1),
    "aten::matmul": (0, 1),
    "aten::addmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::addbmm": (1, 2),
    "aten::addmv": (1, 2),
}


def sizes_at(text: str, b: int) -> list[int]:
    """ "f32[16*b+1,64]" at b."""
    sizes = []
    for part in filter(None, text[text.index("[") + 1 : -1].split(",")):
        times, at_b, plus = part.partition("b")
        sizes.append(int(times.removesuffix("*") or 1) * b + int(plus or 0) if at_b else int(part))
    return sizes


def of_product(left: list[int], right: list[int]) -> int:
    """Each element of the result sums over the last dimension of `left`; what is broadcast over counts once
    for each."""
    columns = right[-1] if len(right) > 1 else 1
    batch = math.prod(left[:-2]) if len(left) >= len(right) else math.prod(right[:-2])
    rows = left[-2] if len(left) > 1 else 1
    return batch * rows * left[-1] * columns


def of_step(name: str, results: list[Any], arguments: list[Any], shape_of: dict[str, list[int]]) -> int:
    base = name.partition(".")[0]
    if base in PRODUCTS:
        return of_product(*(shape_of[arguments[i]] for i in PRODUCTS[base]))
    if base == "stagecraft::grouped_mm":
        return math.prod(shape_of[arguments[0]]) * shape_of[arguments[1]][-1]
    if base == "aten::linear":
        return math.prod(shape_of[arguments[0]]) * shape_of[arguments[1]][0]
    if base == "aten::convolution":
        weight, transposed = shape_of[arguments[1]], arguments[6]
        per_element = math.prod(weight[1:])  # [out, in / groups, kernel], or [in, out / groups, kernel]
        return math.prod(shape_of[arguments[0]] if transposed else results[0]) * per_element
    if base == "stagecraft::lstm":
        tokens, weights = shape_of[arguments[0]][:2], (shape_of[arguments[1]], shape_of[arguments[2]])
        return math.prod(tokens) * sum(map(math.prod, weights))
    if base == "stagecraft::gru":
        return math.prod(shape_of[arguments[0]]) * shape_of[arguments[1]][1]
    if "scaled_dot_product" in base:
        query, key, value = (shape_of[arguments[i]] for i in range(3))
        return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    return 0


def multiply_adds(graph: Json) -> int:
    """Of `forward` of a graph file's JSON, with one sample."""
    shape_of = {f"in{i}": sizes_at(text, 1) for i, text in enumerate(graph["inputs"])}
    for letter, kind in (("p", "parameters"), ("u", "buffers"), ("c", "constants"), ("f", "fields")):
        shape_of.update({f"{letter}{i}": sizes_at(text, 1) for i, text in enumerate(graph.get(kind, []))})
    total = 0
    for name, results, arguments in graph["forward"]["steps"]:
        made = [text and sizes_at(text.split(" ", 1)[1], 1) for text in results]
        total += of_step(name, made, arguments, shape_of)
        shape_of.update({text.split(" ", 1)[0]: sizes for text, sizes in zip(results, made) if text})
    return total
