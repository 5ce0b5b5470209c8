#!/usr/bin/env python3
"""How planning time and the proven gap grow with layers, devices and micro-batches, each with the others
fixed; figures and a picture.

  cmake --preset planner && ninja -C build-planner stagecraft
  scripts/bench/planner_growth.py [--out build-planner/growth]        writes planner_growth.json and
  planner_growth.svg scripts/bench/planner_growth.py --from planner_growth.json          draws again what was
  measured before

Times are processor time of whole `stagecraft plan` processes, the median of --repeats; what the search may
cost is counted, not timed, and so bounded. A gap is what the plan says of itself: how far its step is above
the lower bound of all plans. Layers take 1 to 3 ms forward and twice that backward, at random from a fixed
seed; machines have 8 devices.
"""

import argparse
import json
import math
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile

AXES = {  # title, values
    "layers": ("layers", (16, 32, 64, 128, 256, 512, 1000)),
    "devices": ("devices", (4, 8, 16, 32, 64)),
    "micro_batches": ("micro-batches per step", (4, 8, 16, 32, 64, 128, 256, 512)),
}
FIXED = {"layers": 64, "devices": 16, "micro_batches": 64}
KINDS = {  # arguments, colour
    "1f1b, one device per stage": (("--schedule", "1f1b", "--no-replicate"), "#4c78a8"),
    "1f1b, replicas": (("--schedule", "1f1b"), "#e45756"),
    "pipedream, replicas": (("--schedule", "pipedream"), "#54a24b"),
}
MACHINE = 8
LEAST_GAP = 1e-4  # what is below is drawn at the foot
WIDTH, TIMES, GAPS, LEFT, TOP, BETWEEN, MARGIN = 300, 240, 130, 84, 92, 44, 56


def profile(layers):
    chance = random.Random(layers)
    rows = []
    for i in range(layers):
        forward = chance.uniform(1, 3)
        rows.append(
            {
                "name": f"layer {i}",
                "forward": {"median_ms": forward},
                "backward_input": {"median_ms": forward},
                "backward_weight": {"median_ms": forward},
                "parameter_bytes": 20_000_000,
                "output_bytes": 0 if i + 1 == layers else 4_000_000,
            }
        )
    return {"measurements": [{"micro_batch": 1, "layers": rows}]}


def cluster(devices):
    levels = [{"count": min(devices, MACHINE), "link": {"latency_ms": 0.01, "bytes_per_second": 100e9}}]
    if devices > MACHINE:
        levels.append({"count": devices // MACHINE, "link": {"latency_ms": 0.03, "bytes_per_second": 12e9}})
    return {"levels": levels}


def plan(binary, point, options, folder):
    """Processor seconds, and the gap: None where there is no proof to say one."""
    files = {name: pathlib.Path(folder) / f"{name}.json" for name in ("profile", "cluster")}
    files["profile"].write_text(json.dumps(profile(point["layers"])))
    files["cluster"].write_text(json.dumps(cluster(point["devices"])))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [
            binary,
            "plan",
            "--json",
            "--profile",
            files["profile"],
            "--cluster",
            files["cluster"],
            "--micro-batches",
            str(point["micro_batches"]),
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode != 0:
        sys.exit(f"{point}, {' '.join(options)}: {result.stderr[-2000:]}")
    proof = json.loads(result.stdout).get("proof")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, (
        proof["gap"] if proof else None
    )


def measure(binary, repeats):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for axis, (_, values) in AXES.items():
            for value in values:
                point = {**FIXED, axis: value}
                for kind, (options, _) in KINDS.items():
                    runs = [plan(binary, point, options, folder) for _ in range(repeats)]
                    rows.append(
                        {
                            "axis": axis,
                            "kind": kind,
                            **point,
                            "seconds": statistics.median(r[0] for r in runs),
                            "gap": runs[0][1],
                        }
                    )
                    print(
                        f"{axis} {value}, {kind}: {rows[-1]['seconds']:.3g} s, gap {rows[-1]['gap']}",
                        file=sys.stderr,
                        flush=True,
                    )
    return rows


def time_label(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.999:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e9:g} ns"


def gap_label(gap):
    return "0 %" if gap <= LEAST_GAP else f"{gap * 100:g} %"


class Panel:
    """One diagram: both axes logarithmic, powers of ten up, the values that were measured across."""

    def __init__(self, left, top, height, values, low, high):
        self.left, self.top, self.height, self.low, self.high = left, top, height, low, high
        self.first, self.last = math.log2(values[0]), math.log2(values[-1])
        self.values = values

    def x(self, value):
        return self.left + (math.log2(value) - self.first) / max(self.last - self.first, 1e-9) * WIDTH

    def y(self, value):
        return self.top + (self.high - math.log10(value)) / (self.high - self.low) * self.height

    def grid(self, label, with_values):
        out = []
        for power in range(self.low, self.high + 1):
            y = self.y(10.0**power)
            out.append(
                f'<line x1="{self.left}" x2="{self.left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            )
            if label:
                out.append(
                    f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">{label(10.0**power)}</text>'
                )
        for value in self.values:
            x = self.x(value)
            out.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{self.top + self.height}"'
                ' stroke="#eee"/>'
            )
            if with_values:
                out.append(
                    f'<text x="{x:.1f}" y="{self.top + self.height + 18}" text-anchor="middle">{value}</text>'
                )
        return out

    def line(self, points, colour):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(
                f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{colour}"/>'
                for x, y in points
            ),
        ]

    def in_proportion(self):
        """Slope one, for the eye."""
        foot = self.y(10.0**self.low)
        rise = min((self.last - self.first) * math.log10(2), self.high - self.low)
        across = rise / math.log10(2) / (self.last - self.first) * WIDTH
        return (
            f'<line x1="{self.left}" x2="{self.left + across:.1f}" y1="{foot:.1f}"'
            f' y2="{foot - rise / (self.high - self.low) * self.height:.1f}" stroke="#999"'
            ' stroke-dasharray="4 4"/>'
        )


def draw(rows):
    low = math.floor(math.log10(min(r["seconds"] for r in rows)))
    high = math.ceil(math.log10(max(r["seconds"] for r in rows)))
    width = LEFT + len(AXES) * WIDTH + (len(AXES) - 1) * BETWEEN + 24
    foot = TOP + TIMES + BETWEEN + GAPS
    fixed = ", ".join(f"{value} {AXES[axis][0]}" for axis, value in FIXED.items())
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{foot + MARGIN}" viewBox="0 0'
            f" {width} {foot + MARGIN}\" font-family=\"ui-sans-serif, 'Segoe UI', Helvetica, Arial, 'DejaVu"
            ' Sans\', sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{foot + MARGIN}" fill="white"/>',
        (
            f'<text x="{LEFT}" y="24" font-size="15">Planning time and proven gap; fixed where not varied:'
            f" {fixed}</text>"
        ),
        f'<text x="{LEFT}" y="{TOP - 10}" font-weight="bold">processor time</text>',
        f'<text x="{LEFT}" y="{TOP + TIMES + BETWEEN - 10}" font-weight="bold">gap to the lower bound</text>',
    ]
    for n, (axis, (title, values)) in enumerate(AXES.items()):
        left = LEFT + n * (WIDTH + BETWEEN)
        times = Panel(left, TOP, TIMES, values, low, high)
        gaps = Panel(left, TOP + TIMES + BETWEEN, GAPS, values, round(math.log10(LEAST_GAP)), 0)
        out += times.grid(time_label if n == 0 else None, False)
        out += gaps.grid(gap_label if n == 0 else None, True)
        out.append(times.in_proportion())
        out.append(f'<text x="{left + WIDTH / 2}" y="{foot + 40}" text-anchor="middle">{title}</text>')
        for kind, (_, colour) in KINDS.items():
            mine = sorted(
                (r[axis], r["seconds"], r["gap"]) for r in rows if r["axis"] == axis and r["kind"] == kind
            )
            out += times.line([(x, seconds) for x, seconds, _ in mine], colour)
            if all(gap is not None for _, _, gap in mine):
                out += gaps.line([(x, max(gap, LEAST_GAP)) for x, _, gap in mine], colour)
    x = LEFT
    for kind, colour in [*((kind, colour) for kind, (_, colour) in KINDS.items()), ("in proportion", "#999")]:
        out.append(
            f'<rect x="{x}" y="40" width="12" height="12" fill="{colour}"/><text x="{x + 17}"'
            f' y="51">{kind}</text>'
        )
        x += 48 + 7 * len(kind)
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path("build-planner/stagecraft"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build-planner/growth"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--from", dest="measured", type=pathlib.Path, help="figures measured before")
    arguments = parser.parse_args()
    if arguments.measured:
        rows = json.loads(arguments.measured.read_text())
    else:
        rows = measure(arguments.binary, arguments.repeats)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "planner_growth.json").write_text(json.dumps(rows, indent=1) + "\n")
    (arguments.out / "planner_growth.svg").write_text(draw(rows))
    print(f"{arguments.out / 'planner_growth.json'}, {arguments.out / 'planner_growth.svg'}")


if __name__ == "__main__":
    main()
