#!/usr/bin/env python3
"""What splitting a backward into its input half and its weight half costs: the same work whole and split, in turns on one core.

    python3 scripts/bench/split_backward.py [--config CONFIG] [--pairs 9] [--json OUT]

One rank has the whole model, so nothing is waited for: under 1f1b a micro-batch is `forward backward`, under zb_h1 `forward
backward_input backward_weight`, and that is all that differs. The ratio is of whole steps, so three quarters of a ratio above 1 would be
backward's own. Printed: medians over the pairs of turns, the ratio's median, interquartile range, smallest and largest. Needs an idle core.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from measuring import ROOT, Table, Turns, Workbench, describe_machine, spread, taking_turns


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--config", type=Path, nargs="+", default=[ROOT / "configs/bench_gpt.json", ROOT / "configs/bench_vgg.json"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2, help="behind each turn's median; one more is dropped")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every pair's figures there")
    arguments = parser.parse_args()
    machine = describe_machine()
    table = Table("<config", "split ms", "whole ms", "ratio", "iqr", "least", "most", widths=[18])
    results = []
    for config in arguments.config:
        with tempfile.TemporaryDirectory() as folder:
            bench = Workbench(arguments.binary, config, folder)
            bench.profile(3, ranks=1, links=False)

            def side(schedule, bench=bench):
                plan, _ = bench.plan(schedule, schedule, ranks=1, stages=1)
                return Turns(*bench.train(schedule, plan, 1), bench.folder / f"{schedule}.txt")

            with side("zb_h1") as split, side("1f1b") as whole:
                times = taking_turns([split, whole], arguments.pairs, arguments.steps)
        ratios = [a / b for a, b in zip(*times)]
        table.row(config.stem, *(f"{statistics.median(figures):.1f}" for figures in times), f"{statistics.median(ratios):.3f}",
                  f"{100 * spread(ratios):.1f} %", f"{min(ratios):.3f}", f"{max(ratios):.3f}")
        results.append({"config": str(config), "split_ms": times[0], "whole_ms": times[1]})
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "configs": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
