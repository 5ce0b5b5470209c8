#!/usr/bin/env python3
"""Step times of Stagecraft on one GPU, beside PyTorch's loop and beside its own: from the same weights on the
same data, in turns.

    python3 scripts/bench/gpu.py [--config configs/gpt2_small.json] [--rows ROW ...] [--pairs 5] [--json OUT]

Rows, A against B (a ratio below 1: A is faster):
  plain     one rank, against PyTorch's eager loop over micro-batches (autocast where the config computes in
  bf16) launched  the same without CUDA graphs
  compiled  one rank, against PyTorch's loop with the model under torch.compile
  graphs    one rank with CUDA graphs, against one without
  stages2, stages4   so many stages on the one GPU, ranks being threads, against one stage
and, of a run of one rank, how much of a steady step the GPU computes nothing (from its timeline, whose times
are the GPU's).

Both sides of a row are started once and take turns of a few steps, A B B A, the other stopped (SIGSTOP); a
turn's figure is the median of its steps but the first. Losses of the first steps may differ as reduced
precision has it; the largest difference is printed. --device cpu goes through all of it without a GPU
(--config with a small model), to see that it works.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from measuring import ROOT, Table, Turns, Workbench, describe_machine, overrides, run, spread, taking_turns

ROWS = ["plain", "launched", "compiled", "graphs", "stages2", "stages4"]
LOSSES_COMPARED = 3
COMPUTES = ("forward", "backward", "backward_input", "backward_weight", "recompute", "step", "reduce")


class Gpu:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, Path(folder)
        self.bench = Workbench(
            arguments.binary,
            arguments.config,
            folder,
            bind=False,
            settings={"device": arguments.device, **({"cuda": {"tf32": True}} if arguments.tf32 else {})},
        )
        self.weights = self.folder / "weights"
        self.mixed = self.bench.config.get("bf16", {}).get("enabled", False)

    def plan(self, stages):
        if self.arguments.plans:
            return self.arguments.plans.resolve() / f"{self.arguments.config.stem}.{stages}.json"
        return self.bench.plan(f"stages{stages}", "1f1b", ranks=stages, stages=stages)[0]

    def prepare(self):
        if not self.arguments.plans:
            self.bench.profile(self.arguments.repeats, ranks=1, links=False)
        plan = self.plan(1)
        # PyTorch's side reads float32 weights, and a config that says nothing of a narrower type.
        run(
            self.arguments.binary,
            "train",
            self.bench.base,
            "--plan",
            plan,
            *overrides(
                run_dir=str(self.weights),
                train_steps=1,
                steps_per_print=0,
                log__timeline_steps=0,
                checkpoint__at_start=True,
                checkpoint__keep=0,
            ),
        )

    def ours(self, name, stages=1, graphs=True, **options):
        command, lines = self.bench.train(name, self.plan(stages), 1, cuda__graphs=graphs, **options)
        # without a launcher: ranks are threads
        return (command[command.index(str(self.arguments.binary)) :], lines)

    def theirs(self, compiled=False):
        lines = self.folder / f"theirs.{compiled}.jsonl"
        command = [
            sys.executable,
            "scripts/bench/pipelining.py",
            str(self.weights),
            "--schedule",
            "plain",
            "--device",
            self.arguments.device,
            "--precision",
            "autocast" if self.mixed else "fp32",
            "--steps",
            "1000000",
            "--out",
            str(lines),
        ]
        command += ["--compile"] if compiled else []
        command += ["--tf32"] if self.arguments.tf32 else []
        return command, lines

    def sides(self, row):
        if row == "graphs":
            return ("graphs", self.ours("a")), ("every operator launched", self.ours("b", graphs=False))
        if row.startswith("stages"):
            stages = int(row.removeprefix("stages"))
            return (f"{stages} stages", self.ours("a", stages=stages)), ("1 stage", self.ours("b"))
        ours = (
            ("launched", self.ours("a", graphs=False)) if row == "launched" else ("one rank", self.ours("a"))
        )
        return ours, (
            ("torch.compile", self.theirs(compiled=True))
            if row == "compiled"
            else (
                "PyTorch, eager",
                self.theirs(),
            )
        )

    def measure(self, row):
        (a_name, (a, a_lines)), (b_name, (b, b_lines)) = self.sides(row)
        with (
            Turns(a, a_lines, self.folder / "a.txt") as first,
            Turns(b, b_lines, self.folder / "b.txt") as second,
        ):
            a_ms, b_ms = taking_turns([first, second], self.arguments.pairs, self.arguments.steps, warm=4)
            losses = [
                [record["loss"] for record in side.records()[:LOSSES_COMPARED]] for side in (first, second)
            ]
        return {
            "row": row,
            "a": a_name,
            "b": b_name,
            "a_ms": a_ms,
            "b_ms": b_ms,
            "loss_difference": max(abs(x - y) / max(1, abs(y)) for x, y in zip(*losses)),
        }

    def idle(self):
        """Share of the last steps of a short run in which the rank's device computes nothing."""
        command, _ = self.ours("idle", timeline_steps=4, steps=12)
        run(*command)
        events = json.loads((self.folder / "idle.run/timeline.json").read_text())["traceEvents"]
        events = [event for event in events if event.get("ph") == "X"]
        computing = [event for event in events if event["args"]["op"] in COMPUTES]
        begin, end = min(event["ts"] for event in events), max(event["ts"] + event["dur"] for event in events)
        return 1 - sum(event["dur"] for event in computing) / (end - begin)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--config", default=ROOT / "configs/gpt2_small.json", type=Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--tf32", action="store_true", help="float32 products with inputs rounded to 10 bits, on both sides"
    )
    parser.add_argument("--pairs", type=int, default=5, help="of turns, behind each ratio")
    parser.add_argument("--steps", type=int, default=5, help="behind each turn's median; one more is dropped")
    parser.add_argument(
        "--plans",
        type=Path,
        metavar="DIR",
        help="plans made elsewhere, DIR/CONFIG.STAGES.json: nothing is profiled",
    )
    parser.add_argument("--repeats", type=int, default=20, help="of the profile that plans are made from")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every pair's figures there")
    arguments = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        gpu = Gpu(arguments, folder)
        gpu.prepare()
        print(
            f"{arguments.config.name} on {arguments.device}; {arguments.pairs} pairs of turns of"
            f" {arguments.steps} steps",
            flush=True,
        )
        table = Table(
            "<A", "<B", "A ms", "B ms", "ratio", "iqr", "least", "most", "losses differ", widths=[10, 24]
        )
        results = []
        for row in arguments.rows:
            result = gpu.measure(row)
            ratios = [a / b for a, b in zip(result["a_ms"], result["b_ms"])]
            table.row(
                result["a"],
                result["b"],
                f"{statistics.median(result['a_ms']):.2f}",
                f"{statistics.median(result['b_ms']):.2f}",
                f"{statistics.median(ratios):.3f}",
                f"{100 * spread(ratios):.1f} %",
                f"{min(ratios):.3f}",
                f"{max(ratios):.3f}",
                f"{result['loss_difference']:.0e}",
            )
            results.append(result)
        idle = gpu.idle()
        print(f"one rank, steady steps: the device computes nothing {100 * idle:.1f} % of the time")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {"config": str(arguments.config), "machine": machine, "rows": results, "idle": idle}, indent=2
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
