"""Operators whose derivative autograd writes otherwise in eager mode than for what is traced. Here each is
one call that autograd differentiates as eager does, in both.

- Activations in place that are derived from their result. Out of place autograd takes what they read.
- Products, whose derivative asks whether there is a zero: eager looks at the numbers, a trace takes the way
  that is right for all. (FunctionsManual.cpp, prod_backward and cumprod_backward, for what is differentiated
  once.)
- Diagonals, which a trace writes out as an operator that runs do not have.
- Eigenvalues and singular values, whose vectors eager computes for the derivative alone. What is exported for
  training has them in evaluation too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Function

if TYPE_CHECKING:
    from torch import fx


ATEN = torch.ops.aten


def to_copy(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator in place, on a copy."""

    def call(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        return operator(x.clone(), *given, **named)

    return call


BY_RESULT = {
    operator: to_copy(operator)
    for operator in (ATEN.elu_.default, ATEN.celu_.default, ATEN.selu_.default, ATEN.copy_.default)
}


def without(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Of each element the product of all others along `dim`."""
    ones = x.new_ones([1 if d == dim else size for d, size in enumerate(x.shape)])
    count = x.size(dim)
    before = torch.cat([ones, x.narrow(dim, 0, count - 1)], dim).cumprod(dim)
    behind = torch.cat([ones, x.narrow(dim, 1, count - 1).flip(dim)], dim).cumprod(dim).flip(dim)
    return before * behind


def sums_from_the_end(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


class Product(Function):
    """Over `dim`, whose size stays as 1."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        made = x.prod(dim, keepdim=True)
        ctx.dim = dim
        ctx.save_for_backward(x, made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, made = ctx.saved_tensors
        of_zeros = gradient if x.size(ctx.dim) == 1 else gradient * without(x, ctx.dim)
        return torch.where((x == 0).any(), of_zeros, gradient * (made / x)), None


class ProductsSoFar(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        made = x.cumprod(dim)
        ctx.dim = dim
        ctx.save_for_backward(x, made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, made = ctx.saved_tensors
        dim = ctx.dim
        if x.size(dim) == 1:
            return gradient, None
        weighted, zero = made * gradient, x == 0
        zeros = zero.cumsum(dim)
        before, first = zeros == 0, zero & (zeros == 1)
        between = (zeros == 1) & ~first
        of_first = (x.masked_fill(~between, 1.0).cumprod(dim) * gradient.masked_fill(zeros != 1, 0.0)).sum(
            dim, keepdim=True
        )
        last = torch.cat([torch.ones_like(made.narrow(dim, 0, 1)), made.narrow(dim, 0, x.size(dim) - 1)], dim)
        of_others = torch.where(
            before, sums_from_the_end(weighted.masked_fill(~before, 0.0), dim) / x, torch.zeros_like(x)
        )
        of_zeros = torch.where(first, of_first * last, of_others)
        return torch.where(zero.any(), of_zeros, sums_from_the_end(weighted, dim) / x), None


def prod(x: torch.Tensor) -> torch.Tensor:
    return Product.apply(x.contiguous().view(-1), 0).view([]) if x.dim() else x.clone()


def prod_over(x: torch.Tensor, dim: int, keepdim: bool = False) -> torch.Tensor:
    if not x.dim():
        return x.clone()
    made = Product.apply(x, dim % x.dim())
    return made if keepdim else made.squeeze(dim)


def cumprod(x: torch.Tensor, dim: int) -> torch.Tensor:
    return ProductsSoFar.apply(x, dim % x.dim()) if x.dim() else x.clone()


def diag(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    return x.diagonal(diagonal).clone() if x.dim() == 2 else x.diag_embed(diagonal)


PRODUCTS = {ATEN.prod.default: prod, ATEN.prod.dim_int: prod_over, ATEN.cumprod.default: cumprod}


# Which of their results are vectors, and the argument that asks for them, with its place.
VECTORS = {
    ATEN._linalg_eigh.default: ({1}, "compute_v", 2),
    ATEN._linalg_svd.default: ({0, 2}, "compute_uv", 2),
}


def values_alone(graph: fx.Graph) -> None:
    """For a graph of evaluation: decompositions of which only values are read make no vectors."""
    for node in graph.nodes:
        if node.target not in VECTORS:
            continue
        vectors, asks, place = VECTORS[node.target]
        if not any(user.args[1] in vectors for user in node.users):
            node.args, node.kwargs = node.args[:place], {**node.kwargs, asks: False}


def as_eager(graph: fx.Graph) -> None:
    """Operators of products are those of here. In-place activations are BY_RESULT's of who takes them out of
    place."""
    for node in graph.nodes:
        if node.target == ATEN.diag.default:
            node.target = diag
        instead = PRODUCTS.get(node.target) if node.op == "call_function" else None
        if instead and node.args[0].meta["val"].is_floating_point() and node.kwargs.get("dtype") is None:
            node.target, node.kwargs = (
                instead,
                {name: value for name, value in node.kwargs.items() if name != "dtype"},
            )
