#!/usr/bin/env python3
"""How generating, lowering, checking and simulating grow with ranks, micro-batches and stages per rank.

Runs the benchmark and writes its figures and a picture: CPU time against p, m and v, each with the others
fixed.
  cmake --preset planner -DSTAGECRAFT_BENCHMARKS=ON && ninja -C build-planner bench_simulator
  scripts/bench/growth.py [--out build-planner/growth]        writes growth.json and growth.svg
  scripts/bench/growth.py --from growth.json                  draws again what was measured before
"""

import argparse
import json
import math
import pathlib
import re
import subprocess

PHASES = {
    "generate": "#4c78a8",
    "lower": "#f58518",
    "check": "#e45756",
    "prepare": "#72b7b2",
    "run": "#54a24b",
}
AXES = {"p": "ranks p", "m": "micro-batches m", "v": "stages per rank v"}
FIXED = {"p": 8, "m": 64, "v": 1}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 260, 70, 60, 50


def measure(binary):
    phases = "|".join(PHASES)
    output = subprocess.run(
        [binary, f"--benchmark_filter=^({phases})/p", "--benchmark_format=json", "--benchmark_min_time=0.05"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    rows = []
    for entry in json.loads(output)["benchmarks"]:
        named = re.fullmatch(r"(\w+)/p:(\d+)/m:(\d+)/v:(\d+)", entry["name"])
        assert named is not None, entry["name"]
        phase, p, m, v = named.groups()
        rows.append(
            {
                "phase": phase,
                "p": int(p),
                "m": int(m),
                "v": int(v),
                "actions": int(entry["actions"]),
                "seconds": entry["cpu_time"] * SECONDS[entry["time_unit"]],
            }
        )
    return rows


def line(rows, phase, axis):
    fixed = [other for other in FIXED if other != axis]
    points = [
        (r[axis], r["seconds"])
        for r in rows
        if r["phase"] == phase and all(r[other] == FIXED[other] for other in fixed)
    ]
    return sorted(points)


def label(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.999:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e9:g} ns"


def draw(rows):
    low = math.floor(math.log10(min(r["seconds"] for r in rows)))
    high = math.ceil(math.log10(max(r["seconds"] for r in rows)))
    width = LEFT + len(AXES) * (WIDTH + GAP)
    height = TOP + HEIGHT + 60
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        (
            f'<text x="{LEFT}" y="22" font-size="15">CPU time of each phase of 1f1b; fixed where not varied: '
            f"p = {FIXED['p']}, m = {FIXED['m']}, v = {FIXED['v']}</text>"
        ),
    ]
    for n, (axis, title) in enumerate(AXES.items()):
        left = LEFT + n * (WIDTH + GAP)
        lines = {phase: line(rows, phase, axis) for phase in PHASES}
        values = sorted({x for points in lines.values() for x, _ in points})
        first, last = math.log2(values[0]), math.log2(values[-1])

        def x_of(value, left=left, first=first, last=last):
            return left + (math.log2(value) - first) / max(last - first, 1e-9) * WIDTH

        def y_of(seconds):
            return TOP + (high - math.log10(seconds)) / (high - low) * HEIGHT

        for power in range(low, high + 1):
            y = y_of(10.0**power)
            out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            if n == 0:
                out.append(
                    f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label(10.0**power)}</text>'
                )
        for value in values:
            x = x_of(value)
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#eee"/>')
            out.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{value}</text>')
        out.append(
            f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">{title}</text>'
        )
        # In proportion: a line of slope one, for the eye.
        foot = y_of(10.0**low * 3)
        rise = (last - first) * math.log10(2) / (high - low) * HEIGHT
        out.append(
            f'<line x1="{left}" x2="{left + WIDTH}" y1="{foot:.1f}" y2="{foot - rise:.1f}" stroke="#999" '
            'stroke-dasharray="4 4"/>'
        )
        for phase, colour in PHASES.items():
            path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in lines[phase])
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out.extend(
                f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>'
                for x, y in lines[phase]
            )
    x = LEFT
    for phase, colour in [*PHASES.items(), ("in proportion", "#999")]:
        out.append(
            f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>'
            f'<text x="{x + 17}" y="45">{phase}</text>'
        )
        x += 40 + 7 * len(phase)
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", default="build-planner/test/bench/bench_simulator")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build-planner/growth"))
    parser.add_argument("--from", dest="measured", type=pathlib.Path, help="figures measured before")
    arguments = parser.parse_args()
    known = arguments.measured
    rows = json.loads(known.read_text()) if known else measure(arguments.binary)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "growth.json").write_text(json.dumps(rows, indent=1) + "\n")
    (arguments.out / "growth.svg").write_text(draw(rows))
    print(f"{arguments.out / 'growth.json'}, {arguments.out / 'growth.svg'}")


if __name__ == "__main__":
    main()
