#!/usr/bin/env python3
"""How good and how fast the planner is at the size of clusters.

Makes profiles in the proportions of large GPTs and plans them; prints user CPU time, the plan and how far it may be from the best.
  cmake --preset planner && ninja -C build-planner stagecraft
  scripts/bench/planner_scale.py                       the table of docs/planner.md
  scripts/bench/planner_scale.py --only 96x4096        its rows of that size
  scripts/bench/planner_scale.py --profile LAYERS OUT  writes a profile and ends

The model has an embedding, LAYERS - 2 blocks and a head with the loss, in bf16 at one sequence of 2,048 tokens a micro-batch, on
devices of 400 teraflop/s: 24 s h^2 + 4 s^2 h operations forward a block of width h (Narayanan et al., arXiv 2104.04473, appendix),
twice as many backward. Blocks are uneven: each one's time is its own log-normal multiple (sigma 0.2; seeded), as with experts, layers
that alternate or pruned ones. Weights are 2 bytes a parameter, with 12 more of optimizer state (master copy and two moments).
"""

import argparse
import json
import math
import pathlib
import random
import resource
import subprocess
import tempfile
import time

TOKENS, VOCABULARY, FLOPS = 2048, 51200, 400e12


def profile(layers, width, uneven=0.2, seed=1):
    """A measurement of micro-batches of one sequence; bytes as bf16 has them."""
    rng = random.Random(seed)
    boundary = 2 * TOKENS * width

    def row(name, operations, parameters, kept, output, input_gradient=True):
        forward = operations / FLOPS * 1e3
        return {"name": name, "forward": {"median_ms": forward},
                "backward_input": {"median_ms": forward if input_gradient else 0.0},
                "backward_weight": {"median_ms": forward}, "step": {"median_ms": parameters * 28 / 2e12 * 1e3},
                "parameter_bytes": 2 * parameters, "output_bytes": output, "kept_for_input_bytes": kept,
                "kept_for_weight_bytes": kept // 2, "keeps_input": True, "forward_transient_bytes": boundary,
                "backward_transient_bytes": boundary}

    rows = [row("embedding", TOKENS * width, VOCABULARY * width, 0, boundary, False)]
    for i in range(layers - 2):
        operations = (24 * TOKENS * width**2 + 4 * TOKENS**2 * width) * math.exp(rng.gauss(0, uneven))
        rows.append(row(f"block{i}", operations, 12 * width**2, 14 * boundary, boundary))
    rows.append(row("head", 2 * TOKENS * width * VOCABULARY, VOCABULARY * width, 2 * TOKENS * VOCABULARY, 0))
    return {"model": f"gpt {layers}x{width}", "dtype": "bfloat16", "device": "made by planner_scale.py",
            "optimizer": "adamw", "optimizer_bytes_per_parameter_byte": 6,
            "measurements": [{"micro_batch": 1, "input_bytes": 8 * TOKENS, "targets_bytes": 8 * TOKENS, "layers": rows}]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", nargs=3)
    a = parser.parse_args()
    json.dump(profile(int(a.profile[0]), int(a.profile[1])), open(a.profile[2], "w"), indent=1)
