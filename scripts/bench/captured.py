#!/usr/bin/env python3
"""Step times of captured models beside the same module in PyTorch, from the same weights on the same data, in
turns on this machine.

    PYTHON=scripts/python
    $PYTHON scripts/bench/captured.py [--models llama gpt2 resnet] [--rows 1f1b zb_h1 plain] [--pairs 7]
    [--accumulate fused]
        [--keep all] [--matrix-products onednn] [--compile] [--theirs interleaved] [--json OUT]

Models: of transformers a Llama with 8 blocks, 512 wide, and a GPT-2 with 8 blocks, 256 wide, micro-batches of
4 x 128 tokens, 8 of them; and torchvision's ResNet-18 on images of 3 x 64 x 64, micro-batches of 8, 8 of
them. Rows:
  1f1b    two ranks, the planner's cut, against torch.distributed.pipelining's Schedule1F1B over gloo, cut by
  hand in the middle, or
          with --theirs interleaved their ScheduleInterleaved1F1B of two stages per rank
  zb_h1, zb_v, pipedream   the same of schedules that they have no peer of, or none that torch.compile fits,
  against the same plain   one rank, against a plain loop over micro-batches
  keep    one rank, captured with --keep cheap, against the same captured with --keep all
  own     one rank, a module equal to the library's own GPT, captured, against that (configs/bench_gpt.json;
  with --models gpt alone) compiled   one rank, with the folder's compiled code (stagecraft-capture
  --compile), against the same interpreted
Theirs has a fused optimizer and one thread per rank; with --compile its stages are under torch.compile. Both
sides of a row take turns of a few steps, A B B A, the other stopped, bound to a core per rank. Printed:
medians, the median of the ratios ours/theirs (below 1 Stagecraft is faster), their spread, and the largest
difference of the first steps' losses. Needs idle cores, and scripts/setup.sh --models.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed import pipelining

from measuring import (
    ROOT,
    STAGES_A_RANK,
    Table,
    Turns,
    Workbench,
    describe_machine,
    ranks_of,
    read_json,
    run,
    spread,
    taking_turns,
)

MICRO_BATCHES = 8
LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 8,
    "n_head": 8,
    "vocab_size": 1024,
    "n_positions": 128,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "tie_word_embeddings": False,
}
TEXT = {"llama": LLAMA, "gpt2": GPT2}
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"samples": 4, "sequence": 128},
    "gpt2": {"samples": 4, "sequence": 128},
    "resnet": {"samples": 8, "image": [3, 64, 64]},
    "gpt": {"samples": 4, "sequence": 128},
}
GPT = f"""import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import torch
from pytorch_models import gpt_layers
build = lambda: torch.nn.Sequential(*(layer for _, layer in gpt_layers(512, 128, 8, 256, 8)))
"""
RESNET = "import torchvision\nbuild = lambda: torchvision.models.resnet18(num_classes=10)\n"


class LlamaPart(nn.Module):
    """Some of the blocks, cut as a user does: the rotary tables are made again on every stage."""

    def __init__(self, model, blocks, first, last):
        super().__init__()
        self.embedding = model.model.embed_tokens if first else None
        self.blocks, self.rotary = nn.ModuleList(blocks), model.model.rotary_emb
        self.norm, self.head = (model.model.norm, model.lm_head) if last else (None, None)

    def forward(self, x):
        x = self.embedding(x) if self.embedding is not None else x
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        tables = self.rotary(x, positions)
        for block in self.blocks:
            x = block(x, attention_mask=None, position_ids=positions, position_embeddings=tables)
        return self.head(self.norm(x)) if self.head is not None else x


class Gpt2Part(nn.Module):
    def __init__(self, model, blocks, first, last):
        super().__init__()
        self.tokens, self.positions = (
            (model.transformer.wte, model.transformer.wpe) if first else (None, None)
        )
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = (model.transformer.ln_f, model.lm_head) if last else (None, None)

    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1])) if self.tokens is not None else x
        for block in self.blocks:
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.head(self.norm(x)) if self.head is not None else x


def text_parts(name, count):
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**TEXT[name]))
    part, blocks = (
        (LlamaPart, list(model.model.layers)) if name == "llama" else (Gpt2Part, list(model.transformer.h))
    )
    each = len(blocks) // count
    return [part(model, blocks[i * each : (i + 1) * each], i == 0, i + 1 == count) for i in range(count)]


def resnet_parts(count):
    import torchvision

    torch.manual_seed(0)
    m = torchvision.models.resnet18(num_classes=10)
    layers = [
        m.conv1,
        m.bn1,
        m.relu,
        m.maxpool,
        m.layer1,
        m.layer2,
        m.layer3,
        m.layer4,
        m.avgpool,
        nn.Flatten(1),
        m.fc,
    ]
    return (
        [nn.Sequential(*layers)] if count == 1 else [nn.Sequential(*layers[:6]), nn.Sequential(*layers[6:])]
    )


def next_token_loss(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def peer(rank, world, model, compiled, schedule_name, data, lines, port):
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    stages = world * (2 if schedule_name == "interleaved" else 1)
    mine = range(rank, stages, world)
    parts = text_parts(model, stages) if model in TEXT else resnet_parts(stages)
    parts = [parts[i].train() for i in mine]
    parameters = [p for part in parts for p in part.parameters()]
    parts = [torch.compile(part) for part in parts] if compiled else parts
    loss_of = next_token_loss if model in TEXT else nn.functional.cross_entropy
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=True)
    samples = SIZES[model]["samples"] * MICRO_BATCHES
    schedule = None
    if world > 1:
        staged = [
            pipelining.PipelineStage(part, i, stages, torch.device("cpu")) for i, part in zip(mine, parts)
        ]
        if schedule_name == "interleaved":
            schedule = pipelining.ScheduleInterleaved1F1B(staged, MICRO_BATCHES, loss_fn=loss_of)
        else:
            schedule = pipelining.Schedule1F1B(staged[0], MICRO_BATCHES, loss_fn=loss_of)
    last, before, step = rank + 1 == world, time.perf_counter(), 0
    out = open(lines, "w", buffering=1) if last else None  # noqa: SIM115  # until the process ends
    while True:
        at = step * samples % len(data["inputs"])
        inputs, targets = (data[name][at : at + samples] for name in ("inputs", "targets"))
        optimizer.zero_grad()
        if schedule is None:
            losses = []
            for x, y in zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
                loss = loss_of(parts[0](x), y)
                (loss / MICRO_BATCHES).backward()
                losses.append(loss.detach())
        else:
            losses = []
            schedule.step(
                *([inputs] if rank == 0 else []),
                **({"target": targets, "losses": losses} if last else {}),
                return_outputs=False,
            )
        optimizer.step()
        step += 1
        if last:
            now = time.perf_counter()
            out.write(
                json.dumps(
                    {"step": step, "loss": torch.stack(losses).mean().item(), "ms": 1e3 * (now - before)}
                )
                + "\n"
            )
            before = now


def write_data(model, folder):
    import safetensors.torch

    generator, count = torch.Generator().manual_seed(1), 20 * MICRO_BATCHES * SIZES[model]["samples"]
    if model in TEXT:
        tokens = torch.randint(
            TEXT[model]["vocab_size"], (count, SIZES[model]["sequence"]), generator=generator
        )
        data = {"inputs": tokens, "targets": tokens.clone()}
    else:
        data = {
            "inputs": torch.randn((count, *SIZES[model]["image"]), generator=generator),
            "targets": torch.randint(10, (count,), generator=generator),
        }
    file = folder / f"{model}.safetensors"
    safetensors.torch.save_file(data, file)
    return file


def capture(model, folder, keep, code):
    out = folder / f"{model}.{keep}{'.code' if code else ''}.model"
    if model in TEXT:
        (folder / f"{model}.json").write_text(json.dumps(TEXT[model]))
        what = ["--hf", folder / f"{model}.json", "--sequence", SIZES[model]["sequence"]]
    elif model == "gpt":
        (folder / "gpt.py").write_text(GPT)
        what = [f"{folder}/gpt.py:build", "--sequence", SIZES[model]["sequence"], "--vocabulary", 512]
    else:
        (folder / "resnet.py").write_text(RESNET)
        what = [
            f"{folder}/resnet.py:build",
            "--input",
            ",".join(map(str, SIZES[model]["image"])),
            "--loss",
            "cross_entropy",
        ]
    run(
        "scripts/stagecraft-capture",
        *what,
        "--keep",
        keep,
        *(["--compile", SIZES[model]["samples"]] if code else []),
        "-o",
        out,
    )
    return out


def own_config(arguments, folder, model):
    """Of configs/bench_gpt.json with another model."""
    config = {**read_json(ROOT / "configs/bench_gpt.json"), "matrix_products": arguments.matrix_products}
    config["model"] = model or config["model"]
    del config["pipeline"]
    file = folder / f"gpt.{config['model']['family']}.run.json"
    file.write_text(json.dumps(config))
    return file


def config_of(arguments, model, folder, data, keep=None, code=False):
    keep = keep or arguments.keep
    if model == "gpt":
        return own_config(
            arguments,
            folder,
            {
                "family": "captured",
                "path": str(capture(model, folder, keep, code=False)),
                "accumulate": arguments.accumulate,
            },
        )
    samples = SIZES[model]["samples"]
    file = folder / f"{model}.{keep}{'.code' if code else ''}.run.json"
    file.write_text(
        json.dumps(
            {
                "model": {
                    "family": "captured",
                    "path": str(capture(model, folder, keep, code)),
                    "accumulate": arguments.accumulate,
                    **({"compiled": "require"} if code else {}),
                },
                "data": {"type": "arrays", "path": str(data), "shuffle": False},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
                "train_batch_size": samples * MICRO_BATCHES,
                "train_micro_batch_size_per_gpu": samples,
                "threads_per_rank": 1,
                "matrix_products": arguments.matrix_products,
            }
        )
    )
    return file


def one_rank(arguments, config, folder, row):
    """A profiled run's command, and where it writes a line per step."""
    bench = Workbench(arguments.binary, config, folder)
    bench.profile(30)
    return bench.train(row, bench.plan(row, "1f1b", ranks=1, stages=1)[0], 1)


def compare(arguments, model, folder, table):
    data = write_data(model, folder) if model != "gpt" else None
    bench = Workbench(arguments.binary, config_of(arguments, model, folder, data), folder / model)
    bench.profile(30)
    rows = []
    for row in arguments.rows:
        ranks = 1 if row in ("plain", "keep", "own", "compiled") else 2
        file, plan = bench.plan(
            row, "1f1b" if ranks == 1 else row, ranks=ranks, stages=ranks * STAGES_A_RANK.get(row, 1)
        )
        command, lines = bench.train(row, file, ranks_of(plan))
        theirs_lines, peer_name = (
            folder / f"{model}.{row}.jsonl",
            arguments.theirs if ranks > 1 else "plain loop",
        )
        theirs = [
            sys.executable,
            __file__,
            "--peer",
            model,
            str(ranks),
            str(int(arguments.compile)),
            arguments.theirs,
            str(data),
            str(theirs_lines),
        ]
        if row in ("keep", "own"):
            peer_name = {"keep": "ours, all kept", "own": "the library's own"}[row]
            config = {
                "keep": lambda: config_of(arguments, model, folder, data, "all"),
                "own": lambda: own_config(arguments, folder, None),
            }[row]()
            theirs, theirs_lines = one_rank(arguments, config, folder / f"{model}.beside", row)
        if row == "compiled":
            theirs, theirs_lines, peer_name = command, lines, "ours, interpreted"
            command, lines = one_rank(
                arguments, config_of(arguments, model, folder, data, code=True), folder / f"{model}.code", row
            )
        with (
            Turns(command, lines, folder / "ours.txt") as ours,
            Turns(theirs, theirs_lines, folder / "theirs.txt") as other,
        ):
            ours_ms, theirs_ms = taking_turns([ours, other], arguments.pairs, arguments.steps)
            losses = [[record["loss"] for record in side.records()[:3]] for side in (ours, other)]
        ratios = [a / b for a, b in zip(ours_ms, theirs_ms)]
        difference = max(abs(a - b) / abs(b) for a, b in zip(*losses))
        cut = ",".join(str(stage["first_layer"]) for stage in plan["stages"][1:]) or "nothing"
        table.row(
            f"{model}, {row}, cut at {cut}",
            peer_name,
            f"{statistics.median(ours_ms):.1f}",
            f"{statistics.median(theirs_ms):.1f}",
            f"{statistics.median(ratios):.3f}",
            f"{100 * spread(ratios):.1f} %",
            f"{min(ratios):.3f}",
            f"{max(ratios):.3f}",
            f"{difference:.0e}",
        )
        rows.append(
            {
                "model": model,
                "row": row,
                "ours_ms": ours_ms,
                "theirs_ms": theirs_ms,
                "loss_difference": difference,
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=SIZES, default=["llama", "gpt2", "resnet"])
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=["1f1b", "zb_h1", "zb_v", "pipedream", "plain", "keep", "own", "compiled"],
        default=["1f1b", "zb_h1", "plain"],
    )
    parser.add_argument("--pairs", type=int, default=7, help="of turns, behind each ratio")
    parser.add_argument("--steps", type=int, default=3, help="behind each turn's median; one more is dropped")
    parser.add_argument("--accumulate", choices=["exact", "fused"], default="exact")
    parser.add_argument("--keep", choices=["cheap", "all"], default="cheap", help="ours")
    parser.add_argument("--matrix-products", choices=["blas", "onednn"], default="blas", help="ours")
    parser.add_argument(
        "--theirs",
        choices=["1f1b", "interleaved"],
        default="1f1b",
        help="their schedule on two ranks; interleaved is of text models",
    )
    parser.add_argument("--compile", action="store_true", help="theirs, by torch.compile")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every pair's figures there")
    arguments = parser.parse_args()
    own = "own" in arguments.rows
    if ("gpt" in arguments.models) != own or (own and len(arguments.models + arguments.rows) > 2):
        parser.error("--models gpt goes with --rows own, alone")
    if arguments.theirs == "interleaved" and not set(arguments.models) <= set(TEXT):
        parser.error("--theirs interleaved goes with the models " + ", ".join(TEXT))
    machine, rows = describe_machine(), []
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
        widths=[34],
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            rows += compare(arguments, model, Path(folder), table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


def main_of_peer(model, ranks, compiled, schedule, data, lines):
    import safetensors.torch

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = (int(ranks), model, compiled == "1", schedule, safetensors.torch.load_file(data), lines, port)
    if int(ranks) == 1:
        peer(0, *given)
    processes.spawn(peer, args=given, nprocs=int(ranks))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        main_of_peer(*sys.argv[2:])
    else:
        main()
