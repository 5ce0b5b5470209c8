#!/usr/bin/env python3
"""Measured against simulated steps, for every schedule, with layers that take a given time
(docs/guides/measuring.md).

    python3 scripts/bench/delays.py [--ranks 8 16 32] [--schedules all] [--json OUT]
    python3 scripts/bench/delays.py --ranks 4 --slow-links 0 0.25 0.5 --schedules 1f1b 1f1b+1 1f1b+2 zb_h1

The layers sleep, so two processors are enough for 32 ranks. A sleeper is woken late, by about 0.1 ms however
long it slept. "Late" is by how much on the mean, from the run's timeline, and "as slept" the step simulated
with times that are longer by that: what is left between it and the measured step is the prediction's error.
Each stage is one `delay` layer; a rank's stages together take --times milliseconds forward and for the two
halves of backward. The plan is priced with these given times, not with measured ones, and with a link that
the transport is measured to have (`profile --links`). Measured is the median of a run's steps without their
first third, which of an asynchronous schedule are its steady state. Every row is a run of its own under
mpirun; NAME+N is NAME with warmup_extra N.

--slow-links: transfers that take so many forwards (the boundary's bytes follow), over cards of --mbit
megabits per second between network namespaces (scripts/bench/netns.sh, root only).
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
from pathlib import Path

from measuring import ROOT, SCHEDULES, STAGES_A_RANK, run

CLASSES = 10


class Case:
    """A pipeline of sleeping stages in files: run.json, profile.json (the given times) and cluster.json."""

    def __init__(self, folder, ranks, schedule, features, arguments, link, late=0.0):
        """`late`: milliseconds by which each action takes longer than it is told to."""
        self.folder, self.ranks = folder, ranks
        self.schedule, _, extra = schedule.partition("+")
        self.planned_schedule = f"{self.schedule}:warmup_extra={extra}" if extra else self.schedule
        self.a_rank = STAGES_A_RANK.get(self.schedule, 1)
        self.micro_batches = arguments.micro_batches or 2 * ranks
        stages = ranks * self.a_rank
        times = [time / self.a_rank + late for time in arguments.times]
        outputs = [features] * (stages - 1) + [CLASSES]
        self.times = times
        self.config = folder / "run.json"
        self.config.write_text(
            json.dumps(
                {
                    "model": {
                        "family": "sequential",
                        "layers": [
                            {
                                "type": "delay",
                                "forward_ms": times[0],
                                "backward_input_ms": times[1],
                                "backward_weight_ms": times[2],
                                "features": numbers,
                                "parameters": 1,
                            }
                            for numbers in outputs
                        ],
                    },
                    "data": {
                        "type": "synthetic",
                        "samples": self.micro_batches,
                        "validation_samples": 0,
                        "shape": [16],
                        "classes": CLASSES,
                    },
                    "loss": {"type": "cross_entropy"},
                    "train_batch_size": self.micro_batches,
                    "train_micro_batch_size_per_gpu": 1,
                    "train_steps": arguments.steps,
                    "gradient_norm": arguments.norm,
                    "threads_per_rank": 1,
                    "run_dir": str(folder / "run"),
                    "log": {"timeline_steps": 2},
                }
            )
        )

        def timing(milliseconds):
            return {"median_ms": milliseconds}

        layers = [
            {
                "name": f"delay{i}",
                "forward": timing(times[0]),
                "backward_input": timing(times[1]),
                "backward_weight": timing(times[2]),
                "step": timing(0),
                "parameter_bytes": 4,
                "output_bytes": 4 * numbers,
                "keeps_input": True,
            }
            for i, numbers in enumerate(outputs)
        ]
        layers.append(
            {
                "name": "loss",
                "forward": timing(0),
                "backward_input": timing(0),
                "backward_weight": timing(0),
                "parameter_bytes": 0,
                "output_bytes": 0,
            }
        )
        (folder / "profile.json").write_text(
            json.dumps(
                {
                    "model": "given times",
                    "measurements": [
                        {"micro_batch": 1, "input_bytes": 64, "targets_bytes": 8, "layers": layers}
                    ],
                }
            )
        )
        (folder / "cluster.json").write_text(
            json.dumps({"levels": [{"count": ranks, "link": link, "shared_by": "child"}]})
        )

    def plan(self, binary):
        """Milliseconds per step as simulated."""
        stages = self.ranks * self.a_rank
        virtual = ["--virtual-stages", self.a_rank] if self.a_rank > 1 else []
        run(
            binary,
            "plan",
            self.config,
            "--profile",
            self.folder / "profile.json",
            "--cluster",
            self.folder / "cluster.json",
            "--schedule",
            self.planned_schedule,
            "--cuts",
            ",".join(map(str, range(1, stages))),
            *virtual,
            "--micro-batches",
            self.micro_batches,
            "-o",
            self.folder / "plan.json",
        )
        return json.loads((self.folder / "plan.json").read_text())["predicted"]["step_ms"]

    def train(self, binary, launcher):
        """Milliseconds of the steady steps, and the processors that were busy meanwhile."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(
            *launcher,
            binary,
            "train",
            self.config,
            "--plan",
            self.folder / "plan.json",
            "--set",
            "checkpoint.every_steps=0",
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        steps = [line["ms"] for line in lines if not line["validation"]]
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return steps[len(steps) // 3 :], cpu_s

    def late(self):
        """Milliseconds by which an action in the timeline took longer than it was told to, on the mean."""
        events = json.loads((self.folder / "run/timeline.json").read_text())["traceEvents"]
        told = dict(zip(("forward", "backward_input", "backward_weight"), self.times, strict=True))
        told["backward"] = told["backward_input"] + told["backward_weight"]
        late = [event["dur"] / 1e3 - told[event["cat"]] for event in events if event.get("cat") in told]
        return statistics.mean(late)


def measured_link(arguments, command):
    """Between ranks 0 and 1 of a launcher's, as `profile --links` has it."""
    with tempfile.TemporaryDirectory() as name:
        case = Case(
            Path(name),
            2,
            "1f1b",
            16,
            argparse.Namespace(**{**vars(arguments), "times": [0, 0, 0]}),
            {"latency_ms": 0, "bytes_per_second": 1e9},
        )
        out = Path(name) / "profile.json"
        run(*command, arguments.binary, "profile", case.config, "--links", "--repeats", 3, "-o", out)
        link = json.loads(out.read_text())["link"]
    return {"latency_ms": link["latency_ms"], "bytes_per_second": link["bytes_per_second"]}


def measure(ranks, schedule, features, arguments, link, launcher):
    with tempfile.TemporaryDirectory() as name:
        case = Case(Path(name), ranks, schedule, features, arguments, link)
        simulated = case.plan(arguments.binary)
        steps, cpu_s = case.train(arguments.binary, launcher(ranks))
        late = case.late()
        as_slept = Case(Path(name), ranks, schedule, features, arguments, link, late).plan(arguments.binary)
    measured = statistics.median(steps)
    return {
        "ranks": ranks,
        "schedule": schedule,
        "micro_batches": case.micro_batches,
        "link": link,
        "transfer_ms": link["latency_ms"] + 4e3 * features / link["bytes_per_second"],
        "simulated_ms": simulated,
        "measured_ms": measured,
        "error": simulated / measured - 1,
        "late_ms": late,
        "as_slept_ms": as_slept,
        "error_as_slept": as_slept / measured - 1,
        "steps_ms": steps,
        "cpu_s": cpu_s,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument(
        "--schedules",
        nargs="+",
        default=["all"],
        help=f"NAME or NAME+N of {', '.join(SCHEDULES)} (default: all)",
    )
    parser.add_argument(
        "--times",
        type=float,
        nargs=3,
        default=[20, 20, 20],
        metavar=("F", "I", "W"),
        help="ms per rank and micro-batch (default: 20 20 20)",
    )
    parser.add_argument("--micro-batches", type=int, default=0, help="of a step (default: 2 per rank)")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument(
        "--norm",
        action="store_true",
        help="all ranks agree on the gradient's norm in each step, and so wait for each other",
    )
    parser.add_argument(
        "--features", type=int, default=1024, help="numbers that cross each boundary (default: %(default)s)"
    )
    parser.add_argument(
        "--slow-links",
        type=float,
        nargs="+",
        metavar="T",
        help="transfers that take T forwards, over shaped links",
    )
    parser.add_argument(
        "--mbit", type=int, default=200, help="megabits per second of the shaped links (default: %(default)s)"
    )
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every run's figures there")
    arguments = parser.parse_args()
    arguments.binary = arguments.binary.resolve()
    schedules = SCHEDULES if arguments.schedules == ["all"] else arguments.schedules
    for schedule in schedules:
        if schedule.partition("+")[0] not in [*SCHEDULES, "auto"]:
            parser.error(f"no schedule {schedule}; there are {', '.join(SCHEDULES)}, auto")

    if arguments.slow_links is None:

        def launcher(ranks):
            return ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]

    else:

        def launcher(ranks):
            return [ROOT / "scripts/bench/netns.sh", str(ranks), str(arguments.mbit)]

    load = os.getloadavg()[0]
    f, i, w = arguments.times
    print(f"{os.cpu_count()} processors, load average {load:.2f}; F, I, W {f:g}, {i:g}, {w:g} ms")
    rows = []
    for ranks in arguments.ranks:
        link = measured_link(arguments, launcher(ranks))
        print(
            f"\n{ranks} ranks, link as measured: {link['latency_ms']:.3f} ms + bytes /"
            f" {link['bytes_per_second'] / 1e6:.1f} MB/s"
        )
        print(
            f"{'schedule':<18}{'m':>4}{'transfer ms':>13}{'simulated ms':>14}{'measured ms':>13}"
            f"{'error':>9}{'late ms':>9}{'as slept':>10}{'error':>9}{'smallest':>10}{'largest':>9}"
            f"{'cpu s':>8}"
        )
        for transfer in arguments.slow_links or [None]:
            features = arguments.features
            if transfer is not None:
                features = max(
                    1, round(1e-3 * (transfer * f - link["latency_ms"]) * link["bytes_per_second"] / 4)
                )
            for schedule in schedules:
                row = measure(ranks, schedule, features, arguments, link, launcher)
                rows.append(row)
                print(
                    f"{schedule:<18}{row['micro_batches']:>4}{row['transfer_ms']:>13.2f}"
                    f"{row['simulated_ms']:>14.1f}{row['measured_ms']:>13.1f}{100 * row['error']:>+7.1f}"
                    f" %{row['late_ms']:>9.3f}{row['as_slept_ms']:>10.1f}{100 * row['error_as_slept']:>+7.1f}"
                    f" %{min(row['steps_ms']):>10.1f}{max(row['steps_ms']):>9.1f}{row['cpu_s']:>8.1f}",
                    flush=True,
                )
    worst = max(rows, key=lambda row: abs(row["error"]))
    print(f"furthest off: {worst['schedule']} on {worst['ranks']} ranks, {100 * worst['error']:+.1f} %")
    worst = max(rows, key=lambda row: abs(row["error_as_slept"]))
    print(f"as slept: {worst['schedule']} on {worst['ranks']} ranks, {100 * worst['error_as_slept']:+.1f} %")
    if arguments.json:
        arguments.json.write_text(
            json.dumps(
                {
                    "processors": os.cpu_count(),
                    "load_average": load,
                    "times_ms": arguments.times,
                    "rows": rows,
                },
                indent=2,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
