"""The layers that a capture found, as it prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .folder import graph_name

if TYPE_CHECKING:
    from .capture import Layer


def repeats_at(rows: list[tuple[str, ...]], begin: int) -> tuple[int, int]:
    """The shortest group of at most four rows from `begin` on that is repeated at least four times but for
    names, and how often it stands."""
    for length in (1, 2, 3, 4):
        like, count = [row[1:] for row in rows[begin : begin + length]], 1
        while [row[1:] for row in rows[begin + count * length : begin + (count + 1) * length]] == like:
            count += 1
        if count >= 4:
            return length, count
    return 1, 1


def shortened(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Equal blocks as one, and how many more there are."""
    short, i = [], 0
    while i < len(rows):
        length, count = repeats_at(rows, i)
        short += rows[i : i + length]
        i += length * count
        if count > 1:
            short.append(
                (
                    (
                        f"... {count - 1} more of {'it' if length == 1 else f'these {length}'}, to"
                        f" {rows[i - 1][0]}"
                    ),
                )
            )
    return short


MUCH = 0.6  # of a model's products in one layer: no cut leaves stages that are nearly equal
FEW = 8  # steps of a layer that nobody needs to cut


def lopsided(layers: list[Layer]) -> str:
    """What is said of cuts that leave most of the work in one layer; or ""."""
    work = [int(layer.graph["multiply_adds"]) for layer in layers]
    most = max(range(len(layers)), key=lambda i: work[i])
    if work[most] < MUCH * sum(work) or sum(work) == 0 or len(layers[most].graph["evaluate"]) < FEW:
        return ""
    return (
        f"layer {layers[most].name} has {100 * work[most] / sum(work):.0f} % of the multiply-adds, so stages"
        " cannot be equal: --layers narrow:8 makes 8 layers of about equal work, cut where least goes on"
    )


def table(layers: list[Layer]) -> None:
    """One line per layer."""
    rows: list[tuple[str, ...]] = []
    for layer in layers:
        count = sum(layer.tensors.values[n].numel() for n in layer.tensors.names["p"])
        rows.append(
            (
                layer.name,
                f"{count:,}",
                size(layer.kept),
                size(layer.kept_all),
                " + ".join(layer.graph["outputs"]),
                graph_name(layer.graph),
            )
        )
    head = ("layer", "parameters", "kept per sample", "(all)", "output", "graph")
    rows = [head, *shortened(rows)]
    rows.append(
        (
            "all layers",
            "",
            size(sum(layer.kept for layer in layers)),
            size(sum(layer.kept_all for layer in layers)),
            "",
            "",
        )
    )
    widths = [max(len(row[i]) for row in rows if len(row) > 1) for i in range(len(rows[0]))]
    for row in rows:
        if len(row) == 1:
            print(f"  {row[0]}")
            continue
        line = (
            f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}"
            f"  {row[3]:>{widths[3]}}  {row[4]:<{widths[4]}}  {row[5]}"
        )
        print(line.rstrip())


def size(count: float) -> str:
    units = ["B", "KiB", "MiB", "GiB"]
    while count >= 1024 and units[1:]:
        count /= 1024
        del units[0]
    return f"{count:.4g} {units[0]}"
