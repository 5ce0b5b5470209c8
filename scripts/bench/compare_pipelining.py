#!/usr/bin/env python3
"""Step times of Stagecraft beside PyTorch's, from the same weights on the same data, in turns on this
machine.

    PYTHON=scripts/python
    $PYTHON scripts/bench/compare_pipelining.py [--rows ROW ...] [--pairs 9] [--precision bf16] [--compile]
    [--matrix-products onednn] [--json OUT] $PYTHON scripts/bench/compare_pipelining.py --config
    configs/bench_vgg.json --rows planned best

Rows, ours against theirs (torch.distributed.pipelining over gloo, 2 ranks):
  fill_drain, 1f1b, interleaved_1f1b, interleaved_zb, zb_v   the same schedule and cut: equally many blocks
  per stage, in a convnet layers zb_h1        a schedule they have no peer of, against their fastest
  planned      our 1f1b with the planner's cut, theirs with that even cut, as a user would make it by hand
  best         what `compare` takes of all schedules from a fresh profile, against their fastest
  pipedream, 2bw             asynchronous, against their fastest
  plain        one rank alone, against a loop over micro-batches on one core
  libtorch     the same, against such a loop in C++ (cmake --build build --target bench_plain_loop)
  ddp          two replicas of the whole model, against DistributedDataParallel
  ddp3         two replicas of a first stage and one of a second, against DistributedDataParallel on 3
  processes
Both sides of a row are started once and then take turns of a few steps, A B B A, the other stopped (SIGSTOP):
a turn's figure is the median of its steps but the first. Printed: medians over the pairs, the median ratio
ours/theirs (below 1 Stagecraft is faster), its interquartile range, smallest and largest, and the largest
difference of the losses of the first steps; beyond 1e-5 in fp32 on a synchronous row (1e-4 where the two
round on purpose: --compile, --matrix-products) the row is marked and the exit code 1. Each rank is bound to a
core of its own on both sides unless --no-bind, except where ranks outnumber cores. Needs idle cores.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import measuring
from measuring import (
    ROOT,
    Table,
    Turns,
    Workbench,
    describe_machine,
    overrides,
    ranks_of,
    run,
    spread,
    taking_turns,
)

# Row: our schedule and theirs; "best" is found out. Options are plan's.
SAME = {
    "fill_drain": "gpipe",
    "1f1b": "1f1b",
    "interleaved_1f1b": "interleaved",
    "interleaved_zb": "interleaved_zb",
    "zb_v": "zbv",
}
ROWS = [*SAME, "zb_h1", "planned", "best", "pipedream", "2bw", "plain", "libtorch", "ddp", "ddp3"]
ASYNCHRONOUS = ("pipedream", "2bw")
THEIRS = list(SAME.values())
SPLIT = ("interleaved_zb", "zbv")  # backward in halves, which torch.compile does not let them find
STAGES_A_RANK = {**measuring.STAGES_A_RANK, "interleaved": 2, "zbv": 2}
TOLERANCE = 1e-5
TOLERANCE_OTHERWISE_ROUNDED = 1e-4
LOSSES_COMPARED = 3


class Comparison:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, Path(folder)
        settings = (
            {"bf16": {"enabled": True}}
            if arguments.precision == "bf16"
            else {"matrix_products": arguments.matrix_products}
        )
        self.bench = Workbench(arguments.binary, arguments.config, folder, arguments.bind, settings)
        self.weights = self.folder / "weights"
        self.fastest = None

    def prepare(self):
        self.bench.profile(self.arguments.repeats)
        file, _ = self.bench.plan("weights", "1f1b", ranks=1, stages=1)
        # Weights are fp32 in a checkpoint, and the config theirs is read from is plain.
        run(
            self.arguments.binary,
            "train",
            self.bench.base,
            "--plan",
            file,
            *overrides(
                run_dir=str(self.weights),
                train_steps=1,
                steps_per_print=0,
                log__timeline_steps=0,
                checkpoint__at_start=True,
                checkpoint__keep=0,
            ),
        )

    def ours(self, row):
        stages_a_rank = STAGES_A_RANK.get(row, 1)
        cuts = self.bench.even_cuts(2 * stages_a_rank) if row in SAME else None
        schedule = {"planned": "1f1b", "best": "all"}.get(row, row)
        options = {"cuts": cuts}
        if row in ("plain", "libtorch"):
            schedule, options = "1f1b", {"ranks": 1, "stages": 1}
        if row == "ddp":
            schedule, options = "1f1b", {"stages": 1, "widths": [2]}
        if row == "ddp3":
            schedule, options = "1f1b", {"ranks": 3, "stages": 2, "widths": [2, 1]}
        file, plan = self.bench.plan(row, schedule, **options)
        what = (
            f"{plan['schedule']['name']}, cut at"
            f" {','.join(str(s['first_layer']) for s in plan['stages'][1:]) or 'nothing'}"
        )
        return what, self.bench.train(row, file, ranks_of(plan))

    def theirs(self, schedule, precision):
        lines = self.folder / f"{schedule}.{precision}.jsonl"
        if schedule == "libtorch":
            command = [
                *(["taskset", "-c", "0"] if self.arguments.bind else []),
                str(self.arguments.binary.parent / "bench_plain_loop"),
                str(self.weights),
                "1000000",
                str(lines),
            ]
            return schedule, (command, lines)
        cuts = self.bench.even_cuts(2 * STAGES_A_RANK.get(schedule, 1)) if schedule in THEIRS else []
        ranks = {"plain": 1, "ddp3": 3}.get(schedule, 2)
        name = "ddp" if schedule == "ddp3" else schedule
        command = [
            sys.executable,
            "scripts/bench/pipelining.py",
            str(self.weights),
            "--schedule",
            name,
            "--ranks",
            str(ranks),
            "--precision",
            precision,
            "--steps",
            "1000000",
            "--out",
            str(lines),
        ]
        command += ["--cuts", ",".join(map(str, cuts))] if cuts else []
        command += ["--bind"] if self.arguments.bind and schedule != "ddp3" else []
        command += ["--compile"] if self.arguments.compile else []
        what = f"{schedule}, cut at {','.join(map(str, cuts))}" if cuts else schedule
        return what, (command, lines)

    def tolerance(self):
        return (
            TOLERANCE_OTHERWISE_ROUNDED
            if self.arguments.compile or self.arguments.matrix_products != "blas"
            else TOLERANCE
        )

    def start(self, side):
        command, lines = side
        return Turns(
            command,
            lines,
            self.folder / "log.txt" if "scripts/bench/pipelining.py" in command else self.folder / "ours.txt",
        )

    def find_fastest(self, precision):
        """Their schedule with the least median of a few steps, the candidates one after the other."""
        if self.fastest is None:
            times = {}
            for schedule in self.arguments.theirs:
                with self.start(self.theirs(schedule, precision)[1]) as side:
                    times[schedule] = statistics.median(side.take(2 * self.arguments.steps, drop=2))
            self.fastest = min(times, key=lambda schedule: times[schedule])
            print(
                "their fastest: "
                + ", ".join(
                    f"{name} {ms:.1f} ms" for name, ms in sorted(times.items(), key=lambda item: item[1])
                ),
                flush=True,
            )
        return self.fastest

    def measure(self, row, precision):
        peer = SAME.get(row, {"planned": "1f1b"}.get(row, row))
        if row in ("best", "zb_h1", *ASYNCHRONOUS) or (self.arguments.compile and peer in SPLIT):
            peer = self.find_fastest(precision)
        (our_name, our_side), (their_name, their_side) = self.ours(row), self.theirs(peer, precision)
        with self.start(our_side) as ours, self.start(their_side) as theirs:
            ours_ms, theirs_ms = taking_turns([ours, theirs], self.arguments.pairs, self.arguments.steps)
            losses = [
                [record["loss"] for record in side.records()[:LOSSES_COMPARED]] for side in (ours, theirs)
            ]
        differences = [abs(a - b) / max(1, abs(b)) for a, b in zip(*losses)]
        # What an asynchronous run's second step reads is older, on purpose.
        checked = precision == "fp32" and self.arguments.precision == "fp32"
        worst = max(differences[:1] if row in ASYNCHRONOUS else differences)
        return {
            "row": row,
            "precision": precision,
            "ours": our_name,
            "theirs": their_name,
            "ours_ms": ours_ms,
            "theirs_ms": theirs_ms,
            "loss_difference": worst,
            "same_loss": not checked or worst <= self.tolerance(),
        }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--config", default=ROOT / "configs/bench_gpt.json", type=Path)
    parser.add_argument("--pairs", type=int, default=9, help="of turns, behind each ratio")
    parser.add_argument("--steps", type=int, default=3, help="behind each turn's median; one more is dropped")
    parser.add_argument(
        "--precision",
        choices=["fp32", "bf16"],
        default="fp32",
        help="bf16: against their autocast and their bf16 weights",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help=(
            "their stages under torch.compile; in place of schedules that split backward their fastest"
            " other one"
        ),
    )
    parser.add_argument("--matrix-products", choices=["blas", "onednn"], default="blas", help="ours, in fp32")
    parser.add_argument(
        "--theirs",
        nargs="+",
        choices=THEIRS,
        default=THEIRS,
        help="the schedules that their fastest is found among",
    )
    parser.add_argument("--repeats", type=int, default=30, help="of the profile that plans are made from")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument(
        "--no-bind", dest="bind", action="store_false", help="leave it to the scheduler where ranks run"
    )
    parser.add_argument("--json", type=Path, help="write every pair's figures there")
    arguments = parser.parse_args()
    if arguments.compile:
        arguments.theirs = [name for name in arguments.theirs if name not in SPLIT]
    machine = describe_machine()
    precisions = ["fp32"] if arguments.precision == "fp32" else ["autocast", "bf16"]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(arguments, folder)
        comparison.prepare()
        print(
            f"{arguments.config.name}, {arguments.precision}, {arguments.matrix_products} products of"
            f" ours{', theirs compiled' if arguments.compile else ''}; {arguments.pairs} pairs of turns of"
            f" {arguments.steps} steps, {'bound' if arguments.bind else 'not bound'} to cores"
        )
        for precision in precisions:
            comparison.fastest = None
            if any(row in ("best", "zb_h1", *ASYNCHRONOUS) for row in arguments.rows):
                comparison.find_fastest(precision)
            table = Table(
                "<ours",
                "<theirs",
                "ours ms",
                "theirs ms",
                "ratio",
                "iqr",
                "least",
                "most",
                "losses differ",
                widths=[36, 30],
            )
            for row in arguments.rows:
                result = comparison.measure(row, precision)
                ratios = [ours / theirs for ours, theirs in zip(result["ours_ms"], result["theirs_ms"])]
                name = f"{row}: {result['ours']}" if not result["ours"].startswith(row) else result["ours"]
                table.row(
                    name,
                    result["theirs"] + (f", {precision}" if precision != "fp32" else ""),
                    f"{statistics.median(result['ours_ms']):.1f}",
                    f"{statistics.median(result['theirs_ms']):.1f}",
                    f"{statistics.median(ratios):.3f}",
                    f"{100 * spread(ratios):.1f} %",
                    f"{min(ratios):.3f}",
                    f"{max(ratios):.3f}",
                    f"{result['loss_difference']:.0e}" + ("" if result["same_loss"] else " TOO MUCH"),
                )
                results.append(result)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"config": str(arguments.config), "machine": machine, "rows": results}, indent=2)
            + "\n"
        )
    sys.exit(0 if all(result["same_loss"] for result in results) else 1)


if __name__ == "__main__":
    main()
