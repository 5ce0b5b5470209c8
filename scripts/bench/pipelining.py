#!/usr/bin/env python3
"""Trains the model of a Stagecraft run in PyTorch, from the same weights on the same data, to compare step
times with.

    build/stagecraft train CONFIG --set checkpoint.at_start=true --set train_steps=1 --set run_dir=RUN_DIR
    python scripts/bench/pipelining.py RUN_DIR --schedule 1f1b --cuts 9 [--steps 30] [--out STEPS.jsonl]

Schedules: gpipe, 1f1b, interleaved, interleaved_zb and zbv are torch.distributed.pipelining's over gloo, with
equally many stages per rank; ddp is DistributedDataParallel with one reduction per step; plain is one
process: micro-batches one after the other, gradients accumulated. One process per rank, one thread each,
fused optimizers. A step's time is that between the ends of two steps on the rank with the last stage, which
also writes the loss. On a GPU (plain alone) the loss is read one step late, so that nobody waits for it, and
a step's time is that between the ends of two steps on the GPU.
"""

import argparse
import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pytorch_data import mini_batches, open_data
from pytorch_reference import build_layers, build_optimizer, cross_entropy

SINGLE = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
LOOPED = {
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "interleaved_zb": pipelining.ScheduleInterleavedZeroBubble,
}
V_SHAPED = {"zbv": ScheduleZBVZeroBubble}
PIPELINES = SINGLE | LOOPED | V_SHAPED
SPLIT = ("interleaved_zb", "zbv")  # backward in halves
PRECISIONS = ["fp32", "autocast", "bf16"]


class Precise(nn.Module):
    """Layers in a precision: bf16 has bf16 weights too, autocast casts an operation."""

    def __init__(self, layers, precision, device="cpu"):
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.autocast, self.device = precision == "autocast", device
        if precision == "bf16":
            self.to(torch.bfloat16)

    def forward(self, x):
        with torch.autocast(self.device, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            return self.layers(x)


def loss_of(logits, targets):
    return cross_entropy(logits.float(), targets)


class Accumulating:
    """Micro-batches one after the other: all of them, or under DDP every world-th."""

    def __init__(self, layers, arguments, micro_batches, rank, world):
        self.local = Precise(layers, arguments.precision, arguments.device).to(arguments.device)
        self.modules, self.losses_here = [self.local], True
        self.model = (
            nn.parallel.DistributedDataParallel(self.local, gradient_as_bucket_view=True)
            if world > 1
            else self.local
        )
        if arguments.compile:
            self.model = torch.compile(self.model)
        self.micro_batches, self.rank, self.world = micro_batches, rank, world

    def step(self, inputs, targets):
        mine = list(zip(inputs.chunk(self.micro_batches), targets.chunk(self.micro_batches)))[
            self.rank :: self.world
        ]
        total = torch.zeros((), device=targets.device)
        for i, (x, y) in enumerate(mine):
            quiet = self.world > 1 and i + 1 < len(mine)
            with self.model.no_sync() if quiet else contextlib.nullcontext():
                loss = loss_of(self.model(x), y) / self.micro_batches
                (loss * self.world).backward()  # DDP takes the mean over ranks
            total += loss.detach()
        if self.world > 1:
            dist.all_reduce(total)
        return total


class Pipelined:
    def __init__(self, layers, arguments, micro_batches, rank, world):
        name, bounds = arguments.schedule, [0, *arguments.cuts, len(layers)]
        stages = len(bounds) - 1
        if (
            stages % world
            or (name in SINGLE and stages != world)
            or (name in V_SHAPED and stages != 2 * world)
        ):
            sys.exit(f"pipelining.py: {stages} stages for {name} over {world} ranks")
        mine = [rank, 2 * world - 1 - rank] if name in V_SHAPED else list(range(rank, stages, world))
        self.modules = [Precise(layers[bounds[s] : bounds[s + 1]], arguments.precision) for s in mine]
        compiled = [torch.compile(module) if arguments.compile else module for module in self.modules]
        parts = [
            pipelining.PipelineStage(module, s, stages, torch.device("cpu"))
            for s, module in zip(mine, compiled)
        ]
        if name in V_SHAPED:
            # it would warm up a connection to the rank itself, which gloo has not; nothing else needs it
            for part in parts:
                part._get_init_p2p_neighbors_ops = list
        self.schedule = PIPELINES[name](parts[0] if name in SINGLE else parts, micro_batches, loss_fn=loss_of)
        self.first, self.losses_here = 0 in mine, stages - 1 in mine

    def step(self, inputs, targets):
        losses = []
        ends = {"target": targets, "losses": losses} if self.losses_here else {}
        self.schedule.step(*([inputs] if self.first else []), **ends, return_outputs=False)
        return torch.stack(losses).mean() if losses else None


def train_on_gpu(trainer, optimizer, prepared, steps, out):
    last = None  # step, its loss and the event behind it
    before = torch.cuda.Event(enable_timing=True)
    before.record()
    for i in range(steps + 1):
        this = None
        if i < steps:
            optimizer.zero_grad()
            loss = trainer.step(
                *(tensor.to("cuda", non_blocking=True) for tensor in prepared[i % len(prepared)])
            )
            optimizer.step()
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            this = (i + 1, loss, end)
        if last:
            step, loss, end = last
            end.synchronize()  # of the step before: this one is under way
            print(
                json.dumps({"step": step, "loss": loss.item(), "ms": before.elapsed_time(end)}),
                file=out,
                flush=True,
            )
            before = end
        last = this


def train(rank, world, arguments, port):
    torch.set_num_threads(1)
    if arguments.bind:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    config = json.loads((arguments.run_dir / "config.json").read_text())
    data = open_data(config["data"])
    layers = [
        layer for _, layer in build_layers(config, data, arguments.run_dir / "checkpoints/step-00000000")
    ]
    micro_batches = -(-config["train_batch_size"] // config["train_micro_batch_size_per_gpu"])
    kind = Pipelined if arguments.schedule in PIPELINES else Accumulating
    trainer = kind(layers, arguments, micro_batches, rank, world)
    optimizer = build_optimizer(config, nn.ModuleList(trainer.modules), fused=True)
    batches = mini_batches(data, config)
    # reading data is not what is compared
    prepared = [next(batches) for _ in range(min(arguments.steps, arguments.batches))]
    if arguments.precision == "bf16":
        prepared = [(x.bfloat16() if x.is_floating_point() else x, y) for x, y in prepared]
    speaks = trainer.losses_here and (kind is Pipelined or rank == 0)
    out = None
    if speaks and arguments.out:
        out = open(arguments.out, "w", encoding="utf-8", buffering=1)  # noqa: SIM115  # until the process ends
    if arguments.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.tf32
        prepared = [(x.pin_memory(), y.pin_memory()) for x, y in prepared]
        train_on_gpu(trainer, optimizer, prepared, arguments.steps, out or sys.stdout)
        return
    before = time.perf_counter()
    for i in range(arguments.steps):
        optimizer.zero_grad()
        loss = trainer.step(*prepared[i % len(prepared)])
        optimizer.step()
        if not speaks:
            continue
        now = time.perf_counter()
        line = json.dumps({"step": i + 1, "loss": loss.item(), "ms": 1e3 * (now - before)})
        before = now
        print(line, file=out or sys.stdout, flush=True)
    if world > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run_dir", type=Path, help="of a Stagecraft run with checkpoint.at_start")
    parser.add_argument("--schedule", choices=[*PIPELINES, "ddp", "plain"], default="1f1b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--cuts",
        type=lambda t: [int(n) for n in t.split(",")],
        default=[],
        help="first layers of stages 1, 2, ...",
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: for plain")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="the model, or each stage, under torch.compile; not for schedules that split backward",
    )
    parser.add_argument(
        "--tf32", action="store_true", help="float32 products on a GPU with inputs rounded to 10 bits"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--batches", type=int, default=40, help="different mini-batches, made before the first step"
    )
    parser.add_argument("--bind", action="store_true", help="rank i runs on core i alone")
    parser.add_argument("--out", type=Path, help="a line per step goes there instead of the standard output")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and arguments.schedule != "plain":
        parser.error("--device cuda is for --schedule plain")
    if arguments.compile and arguments.schedule in SPLIT:
        parser.error(
            "--compile is not for schedules that split backward: PyTorch finds the halves in the graph of"
            " autograd, which compiling hides"
        )
    if arguments.schedule == "plain":
        train(0, 1, arguments, None)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes.spawn(train, args=(arguments.ranks, arguments, port), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
