#!/usr/bin/env python3
"""torchgpipe's and DeepSpeed's partitions beside ours: busiest stage and simulated 1f1b step, as tables in
Markdown.

  git clone https://github.com/kakaobrain/torchgpipe && git clone https://github.com/deepspeedai/DeepSpeed
       (or any checkouts) python3 -m venv venv && venv/bin/pip install numpy
  cmake --preset planner && ninja -C build-planner stagecraft
  venv/bin/python scripts/bench/partitioners.py --torchgpipe torchgpipe --deepspeed DeepSpeed

Their own code cuts the same layers with the same times: of torchgpipe torchgpipe/balance/blockpartition.py,
which balance_by_time calls; of DeepSpeed partition_uniform and partition_balanced in
deepspeed/runtime/utils.py, which PipelineModule calls for its methods "uniform" and "parameters". It has no
method that takes times: "by time" is its partition_balanced with times as weights, the best it could do.
Every partition is priced by `stagecraft plan --cuts`: p stages on p devices with a link each, 4p
micro-batches.

Models: PipeDream's profiles as the chains that `plan` makes of them, test/data/profiles/gpt_10_layers.json,
and two GPT shapes whose times follow from their operations (gpt_profile below).
"""

import argparse
import ast
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

GRAPHS = ("vgg16", "resnet50")
GPTS = {"gpt 24 x 1024": (24, 1024), "gpt 48 x 1600": (48, 1600)}  # blocks, width: GPT-2 medium and XL
STAGES = (2, 4, 8, 16)
METHODS = ("torchgpipe", "DeepSpeed parameters", "DeepSpeed uniform", "DeepSpeed by time")


def load_torchgpipe(checkout):
    path = checkout / "torchgpipe" / "balance" / "blockpartition.py"
    spec = importlib.util.spec_from_file_location("blockpartition", path)
    assert spec is not None and spec.loader is not None  # a file of Python
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.solve


def load_deepspeed(checkout):
    """Its two functions alone: the file they are in imports all of DeepSpeed."""
    path = checkout / "deepspeed" / "runtime" / "utils.py"
    wanted = ("partition_uniform", "partition_balanced")
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    functions = {}
    exec(compile(tree, str(path), "exec"), functions)  # the code that is compared
    return [functions[name] for name in wanted]


def gpt_profile(blocks, width, sequence=1024, samples=4, vocabulary=50257, flops=100e12, bandwidth=1.5e12):
    """A GPT by its operations: products at `flops` a second, what only moves bytes at `bandwidth`; fp16
    activations and weights.

    A block has 12 width^2 weights: forward 2 operations a weight and token, and 4 sequence width a token for
    attention. The head is a product with the vocabulary's width x vocabulary weights, the embedding a look-up
    in as many: the same bytes, no operations.
    """
    tokens = samples * sequence
    boundary = 2 * tokens * width

    def layer(name, operations, moved, parameters, output):
        forward = (operations / flops + moved / bandwidth) * 1e3
        half = {"median_ms": forward}
        return {
            "name": name,
            "forward": half,
            "backward_input": {"median_ms": 0.0} if name == "embedding" else half,
            "backward_weight": half,
            "parameter_bytes": 2 * parameters,
            "output_bytes": output,
        }

    block = layer("", tokens * (24 * width**2 + 4 * sequence * width), 10 * boundary, 12 * width**2, boundary)
    layers = [layer("embedding", 0, 2 * boundary, (vocabulary + sequence) * width, boundary)]
    layers += [dict(block, name=f"block {b}") for b in range(blocks)]
    layers += [
        layer(
            "head",
            tokens * 2 * width * vocabulary,
            2 * tokens * vocabulary,
            vocabulary * width,
            2 * tokens * vocabulary,
        )
    ]
    layers += [layer("loss", 0, 4 * tokens * vocabulary, 0, 0)]
    return {"model": f"gpt {blocks} x {width}", "measurements": [{"micro_batch": samples, "layers": layers}]}


class Model:
    def __init__(self, arguments, name, profile, folder, size=None):
        self.arguments, self.name, self.profile, self.folder, self.size = (
            arguments,
            name,
            profile,
            folder,
            size,
        )
        # A stage per layer: then the plan's costs are the layers'.
        most = self.most_stages()
        plan = self.plan(most, 1, list(range(1, most)))
        costs = plan["costs"]["stages"]
        self.times = [c["forward_ms"] + c["backward_input_ms"] + c["backward_weight_ms"] for c in costs]
        self.parameters = [c["parameter_bytes"] for c in costs]

    def plan(self, stages, micro_batches, cuts=None):
        """None where there is no such plan."""
        cluster = pathlib.Path(self.folder) / "cluster.json"
        cluster.write_text(
            json.dumps(
                {
                    "levels": [
                        {
                            "count": stages,
                            "link": {"latency_ms": 0.01, "bytes_per_second": self.arguments.bandwidth},
                        }
                    ]
                }
            )
        )
        command = [
            self.arguments.binary,
            "plan",
            "--json",
            "--no-replicate",
            "--profile",
            self.profile,
            "--cluster",
            cluster,
            "--schedule",
            "1f1b",
            "--stages",
            str(stages),
            "--micro-batches",
            str(micro_batches),
        ]
        command += ["--cuts", ",".join(map(str, cuts))] if cuts else []
        command += ["--micro-batch-size", str(self.size)] if self.size else []
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == 2:
            self.why_not = result.stderr.strip()
            return None
        if result.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{result.stderr[-2000:]}")
        return json.loads(result.stdout)["plan"]

    def most_stages(self):
        """As many as can be cut; a loss stays with the layer before it, as with theirs, who do not count
        it."""
        if self.profile.suffix == ".txt":
            least, most = 1, 4096
            while least < most:  # more stages than layers are refused
                middle = (least + most + 1) // 2
                least, most = (
                    (middle, most) if self.plan(middle, 1, list(range(1, middle))) else (least, middle - 1)
                )
            return least
        layers = [json.loads(strip_comments(self.profile.read_text()))["measurements"][0]["layers"]][0]
        return len(layers) - (layers[-1]["name"] == "loss")


def strip_comments(text):
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))


def their_cuts(method, model, stages, torchgpipe, deepspeed):
    uniform, balanced = deepspeed
    if method == "torchgpipe":
        ends, cuts = torchgpipe(model.times, stages), []
        for part in ends[:-1]:
            cuts.append((cuts[-1] if cuts else 0) + len(part))
        return cuts
    parts = {
        "DeepSpeed parameters": lambda: balanced(model.parameters, stages),
        "DeepSpeed uniform": lambda: uniform(len(model.times), stages),
        "DeepSpeed by time": lambda: balanced(model.times, stages),
    }[method]()
    return [int(p) for p in parts[1:-1]]


def row(model, stages, torchgpipe, deepspeed):
    micro_batches = 4 * stages
    our = model.plan(stages, micro_batches)["predicted"]
    cells = [model.name, str(stages), f"{our['bottleneck_ms']:.4g}", f"{our['step_ms']:.4g}"]
    for method in METHODS:
        plan = model.plan(stages, micro_batches, their_cuts(method, model, stages, torchgpipe, deepspeed))
        if plan is None:
            cells.append("a stage without layers")
            continue
        their = plan["predicted"]
        cells.append(
            f"{their['bottleneck_ms'] / our['bottleneck_ms']:.3f}, {their['step_ms'] / our['step_ms']:.3f}"
        )
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--torchgpipe", type=pathlib.Path, required=True, help="checkout of kakaobrain/torchgpipe"
    )
    parser.add_argument(
        "--deepspeed", type=pathlib.Path, required=True, help="checkout of deepspeedai/DeepSpeed"
    )
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path("build-planner/stagecraft"))
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("test/data"))
    parser.add_argument(
        "--bandwidth", type=float, default=12e9, help="bytes per second of a link; its latency is 10 us"
    )
    arguments = parser.parse_args()
    torchgpipe, deepspeed = load_torchgpipe(arguments.torchgpipe), load_deepspeed(arguments.deepspeed)
    print("| model | stages | our busiest stage, ms | our step, ms | " + " | ".join(METHODS) + " |")
    print("|---|---|---|---|" + "---|" * len(METHODS))
    with tempfile.TemporaryDirectory() as folder:
        models = [
            Model(arguments, name, arguments.data / "pipedream" / f"{name}.graph.txt", folder)
            for name in GRAPHS
        ]
        models.append(
            Model(
                arguments, "gpt_10_layers", arguments.data / "profiles" / "gpt_10_layers.json", folder, size=4
            )
        )
        for name, shape in GPTS.items():
            path = pathlib.Path(folder) / f"{name}.json"
            path.write_text(json.dumps(gpt_profile(*shape)))
            models.append(Model(arguments, name, path, folder))
        for model in models:
            for stages in STAGES:
                if stages <= len(model.times):
                    print(row(model, stages, torchgpipe, deepspeed), flush=True)


if __name__ == "__main__":
    main()
