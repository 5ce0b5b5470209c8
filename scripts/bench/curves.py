#!/usr/bin/env python3
"""Draws the training losses of runs against steps.

    scripts/bench/curves.py OUT.svg NAME=RUN_DIRECTORY... [--title TEXT] [--mean STEPS] [--span LOSS]

Each point is the mean of the last STEPS steps (default: 20), and LOSS (default: 2) is how much above the
least one the picture shows. Behind a name stands where its curve ends.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


def losses_of(folder, smoothed=20):
    """Of the training steps, each the mean of the last so many."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if not record["validation"]]
    return [statistics.mean(losses[max(0, at - smoothed) : at]) for at in range(1, len(losses) + 1)]


def draw(lines, across, title, span=2):
    """Loss against `across`, as SVG; each line is (name, losses, where each stands). `span`: how much above
    the least loss is seen."""
    width, height, left, top, foot = 760, 420, 50, 34, 40
    last = max(at[-1] for _, _, at in lines)
    low = math.floor(min(min(losses) for _, losses, _ in lines) * 5) / 5
    high = low + span

    def x_of(at):
        return left + at / last * (width - left - 16)

    def y_of(loss):
        return top + (high - loss) / (high - low) * (height - top - foot)

    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width}'
            f' {height}" font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">{title}</text>',
    ]
    for k in range(11):
        loss, at = low + k * span / 10, last * k / 10
        out.append(
            f'<path d="M{left} {y_of(loss):.1f}H{width - 16}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y_of(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>'
            f'<text x="{x_of(at):.1f}" y="{height - 22}" text-anchor="middle">{at:.3g}</text>'
        )
    out.append(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">{across}</text>')
    for k, (name, losses, at) in enumerate(lines):
        points = " ".join(f"{x_of(x):.1f},{y_of(min(loss, high)):.1f}" for x, loss in zip(at, losses))
        colour = COLOURS[k % len(COLOURS)]
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            f'<text x="{width - 270}" y="{top + 18 + 16 * k}" fill="{colour}">{name}: {losses[-1]:.3f}</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def named(text):
    name, equals, folder = text.partition("=")
    if not equals or not (Path(folder) / "metrics.jsonl").is_file():
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=RUN_DIRECTORY, with a metrics.jsonl in it")
    return name, Path(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    parser.add_argument("runs", nargs="+", type=named, metavar="NAME=RUN_DIRECTORY")
    parser.add_argument("--title", default="Training loss")
    parser.add_argument("--mean", type=int, default=20, metavar="STEPS", help="of a point (default: 20)")
    parser.add_argument(
        "--span", type=float, default=2, metavar="LOSS", help="that is seen above the least (default: 2)"
    )
    arguments = parser.parse_args()
    lines = [(name, losses_of(folder, arguments.mean)) for name, folder in arguments.runs]
    drawn = [(name, losses, range(1, len(losses) + 1)) for name, losses in lines]
    arguments.out.write_text(
        draw(drawn, "optimizer steps", f"{arguments.title} (mean of {arguments.mean} steps)", arguments.span)
    )


if __name__ == "__main__":
    main()
