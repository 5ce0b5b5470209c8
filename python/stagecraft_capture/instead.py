"""Operators that runs do not execute: what to write in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BY_PLACES = (
    "choose with torch.where(mask, a, b), which keeps all places; experts sort tokens by what they chose, and"
    " multiply by torch.nn.functional.grouped_mm (docs/guides/pytorch.md, mixtures of experts)"
)
INSTEAD = {
    "where": BY_PLACES,
    "nonzero": BY_PLACES,
    "embedding_sparse_backward": "leave sparse=True out: sparse gradients are not known here",
    "linalg_householder_product": (
        'give torch.nn.utils.parametrizations.orthogonal orthogonal_map="cayley", or train the weight as it'
        " is"
    ),
    "torchvision::deform_conv2d": (
        "only torchvision has a kernel for it, and runs have none of torchvision's: sample the image with"
        " torch.nn.functional.grid_sample, and multiply what it makes by the weight"
    ),
    "torchvision::roi_align": (
        "only torchvision has a kernel for it: sample as many regions of each image as a field has, with"
        " torch.nn.functional.grid_sample"
    ),
    "torchvision::nms": (
        "how many boxes it leaves depends on the batch's numbers: leave it to the evaluation, outside of the"
        " model"
    ),
    "as_strided": (
        "write x.unfold(dim, size, step) for windows, and slices or x.diagonal() for places, whose strides"
        " follow from sizes"
    ),
    "linalg_lstsq": "write torch.linalg.pinv(a) @ b, or torch.linalg.solve(a.mT @ a, a.mT @ b)",
    "linalg_eig": "use torch.linalg.eigh of a symmetric matrix, or torch.linalg.svd",
    "histogram": "use torch.histc(x, bins, min, max)",
    "histc": "give torch.histc its min and max: without them they are the batch's numbers",
    "bincount": "give torch.bincount a minlength, above which there are no numbers",
    "repeat_interleave": "give torch.repeat_interleave its output_size, the sum of repeats",
    "segment_reduce": "write torch.zeros(...).index_add(0, index, x), or scatter_reduce for other reductions",
    "unique": "take torch.bincount(x.flatten(), minlength=N), or x[..., None] == torch.arange(N)",
    "_pack_padded_sequence": (
        "packed sequences have sizes that their lengths decide: give the recurrent layer the padded ones,"
        " take what lies at lengths - 1 with torch.gather, and mask what lies behind"
    ),
    "_nested_tensor_from_tensor_list": "pad to one length, and give a mask as a field",
}


def of_detectors(module: torch.nn.Module) -> str | None:
    """What is said of a module with one of torchvision's detectors in it."""
    for name, part in module.named_modules():
        if type(part).__module__.startswith("torchvision.models.detection.") and hasattr(part, "transform"):
            return (
                f"{f'module {name!r}' if name else 'the model itself'}: torchvision's detectors pick boxes by"
                " their numbers, and return no losses after eval(): capture backbone and head, and let the"
                " loss mask all anchors, as examples/detector/detector.py does"
            )
    return None


def base_of(name: str) -> str:
    """Of aten::NAME.OVERLOAD."""
    return name.removeprefix("aten::").partition(".")[0]


def not_executed(operator: str) -> str:
    """What is said of one that is not in the engine's list."""
    instead = INSTEAD.get(base_of(operator), "")
    return f"runs do not execute the operator {operator}; " + (
        instead or "compute the same with others (models/captured/operators/operators.cpp lists them)"
    )
