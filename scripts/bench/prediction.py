#!/usr/bin/env python3
"""How far `plan`'s step times are from what `train` then measures, over 20 settings of model, cut,
micro-batch size and schedule.

    python3 scripts/bench/prediction.py [--settings WORD ...] [--rounds 3] [--seconds 4] [--json OUT]

For every model and micro-batch size: a profile (`mpirun -np 2 stagecraft profile --links`), then each of its
settings is planned from it and takes a turn of some seconds of training (in between its processes are
stopped), and all of this again in the next rounds, because a machine's speed wanders over minutes. A round's
error is predicted over measured - 1. Printed a setting: medians over the rounds, the measured times' spread
(their range over their median), the median error; then the median and largest error, also over those settings
alone whose spread is below 2 %, and for each model the rank correlation (Spearman) of predicted and measured
times over its settings. Fashion-MNIST is fetched by scripts/fetch_data.sh. Needs idle cores, as many as
ranks.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from measuring import ROOT, Table, Turns, Workbench, describe_machine, ranks_of

# Config: micro-batch size: (schedule, cuts or None for the planner's).
SETTINGS: dict[str, dict[int, list[tuple[str, list[int] | None]]]] = {
    "bench_gpt": {
        4: [("fill_drain", [9]), ("1f1b", None), ("zb_h1", None), ("pipedream", None), ("1f1b", [7])],
        8: [("1f1b", None)],
    },
    "quickstart_gpt": {4: [("fill_drain", None), ("1f1b", [4]), ("zb_h1", None), ("interleaved_1f1b", None)]},
    "fashion_convnet": {16: [("1f1b", None), ("fill_drain", [7]), ("2bw", None)], 32: [("1f1b", None)]},
    "fashion_mlp": {32: [("1f1b", None), ("fill_drain", None)]},
    "bench_vgg": {16: [("1f1b", None), ("zb_h1", None), ("1f1b", [24]), ("2bw", None)]},
}
CALM = 0.02  # spread of the measured times


def settings_of(words):
    """(config, micro-batch size, [(schedule, cuts)]) of the settings whose names have one of the words."""
    for config, sizes in SETTINGS.items():
        for size, wanted in sizes.items():
            chosen = [
                one
                for one in wanted
                if not words or any(word in name_of(config, size, *one) for word in words)
            ]
            if chosen:
                yield config, size, chosen


def name_of(config, size, schedule, cuts):
    return f"{config} {schedule}, {size} per micro-batch, " + (
        f"cut at {','.join(map(str, cuts))}" if cuts else "planner's cut"
    )


class Setting:
    """One run that waits for its turns."""

    def __init__(self, bench, config, size, schedule, cuts, stack):
        self.bench, self.config, self.name = bench, config, name_of(config, size, schedule, cuts)
        self.schedule, self.cuts = schedule, cuts
        file, plan = self.plan()
        # The same cut in every round: that is what runs.
        self.cuts = [stage["first_layer"] for stage in plan["stages"][1:]]
        key = f"{schedule}-{'-'.join(map(str, self.cuts))}"
        command, lines = bench.train(key, file, ranks_of(plan))
        self.turns = stack.enter_context(Turns(command, lines, bench.folder / f"{key}.txt"))
        self.turns.take(1, drop=2)
        self.rounds = []

    def plan(self):
        stages = None if self.cuts else 4 if self.schedule.startswith("interleaved") else 2
        return self.bench.plan(f"{self.schedule}-planned", self.schedule, cuts=self.cuts, stages=stages)

    def round(self, seconds):
        predicted = self.plan()[1]["predicted"]["step_ms"]
        measured = statistics.median(self.turns.take(max(3, round(1e3 * seconds / predicted))))
        self.rounds.append({"predicted_ms": predicted, "measured_ms": measured})

    def summary(self):
        predicted, measured = ([one[key] for one in self.rounds] for key in ("predicted_ms", "measured_ms"))
        return {
            "setting": self.name,
            "config": self.config,
            "predicted_ms": statistics.median(predicted),
            "measured_ms": statistics.median(measured),
            "spread": (max(measured) - min(measured)) / statistics.median(measured),
            "error": statistics.median(p / m - 1 for p, m in zip(predicted, measured)),
            "rounds": self.rounds,
        }


def ranks(values):
    return [sorted(values).index(value) for value in values]


def spearman(a, b):
    return statistics.correlation(ranks(a), ranks(b)) if len(set(a)) > 1 and len(set(b)) > 1 else float("nan")


def print_summary(results):
    table = Table("<setting", "predicted ms", "measured ms", "spread", "error", widths=[66])
    for one in results:
        table.row(
            one["setting"],
            f"{one['predicted_ms']:.1f}",
            f"{one['measured_ms']:.1f}",
            f"{100 * one['spread']:.1f} %",
            f"{100 * one['error']:+.1f} %",
        )
    for what, chosen in (
        ("all", results),
        (f"spread below {100 * CALM:.0f} %", [one for one in results if one["spread"] < CALM]),
    ):
        errors = [100 * abs(one["error"]) for one in chosen]
        if errors:
            print(
                f"{what}: {len(errors)} settings, median error {statistics.median(errors):.1f} %, largest"
                f" {max(errors):.1f} %"
            )
    models = defaultdict(list)
    for one in results:
        models[one["config"]].append(one)
    for config, ones in models.items():
        if len(ones) > 1:
            predicted, measured = ([one[what] for one in ones] for what in ("predicted_ms", "measured_ms"))
            print(f"{config}: rank correlation {spearman(predicted, measured):.2f} over {len(ones)} settings")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--settings",
        nargs="+",
        default=[],
        metavar="WORD",
        help="those whose name has one of the words (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of training a setting and round")
    parser.add_argument("--repeats", type=int, default=30, help="of a profile")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--list", action="store_true", help="print the settings, and stop")
    parser.add_argument("--json", type=Path, help="write every round's figures there")
    arguments = parser.parse_args()
    chosen = list(settings_of(arguments.settings))
    if arguments.list or not chosen:
        print(
            "\n".join(
                name_of(config, size, *one) for config, size, wanted in settings_of([]) for one in wanted
            )
        )
        return
    machine = describe_machine()
    results = []
    for config, size, wanted in chosen:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            bench = Workbench(
                arguments.binary,
                ROOT / f"configs/{config}.json",
                folder,
                settings={"train_micro_batch_size_per_gpu": size},
            )
            bench.profile(arguments.repeats)
            settings = [Setting(bench, config, size, schedule, cuts, stack) for schedule, cuts in wanted]
            for number in range(arguments.rounds):
                if number > 0:
                    bench.profile(arguments.repeats)
                for setting in settings if number % 2 == 0 else settings[::-1]:
                    setting.round(arguments.seconds)
            for setting in settings:
                results.append(setting.summary())
                print(f"  {setting.name}: {100 * results[-1]['error']:+.1f} %", flush=True)
    print_summary(results)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "settings": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
