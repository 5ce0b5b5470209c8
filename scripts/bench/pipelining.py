#!/usr/bin/env python3
"""A GPT of a Stagecraft config trained by torch.distributed.pipelining over gloo, to compare step times with.

    python scripts/bench/pipelining.py configs/bench_gpt.json [--schedule 1f1b|gpipe|plain] [--steps 30] [--json OUT]

One process a stage on this machine, one thread each; the cut is the config's `pipeline.cuts`. `plain` is one process without a
pipeline: the same micro-batches one after the other. A step's time is the time between the ends of consecutive steps on rank 0.
"""

import argparse
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
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pytorch_models import gpt_layers, read_json


def make_stage(config, stage, stages):
    """The modules of one stage; every rank draws the whole model, so that all agree on it."""
    torch.manual_seed(config["seed"])
    model, data = config["model"], config["data"]
    layers = gpt_layers(data["classes"], data["shape"][0], model["blocks"], model["width"], model["heads"])
    bounds = [0, *(config["pipeline"]["cuts"] if stages > 1 else []), len(layers)]
    assert len(bounds) == stages + 1, f"pipeline.cuts makes {len(bounds) - 1} stages of {stages}"
    return nn.Sequential(*(module for _, module in layers[bounds[stage]:bounds[stage + 1]]))


def make_optimizer(config, module):
    assert config["optimizer"]["type"] == "AdamW"
    given = config["optimizer"].get("params", {})
    return torch.optim.AdamW(module.parameters(), lr=given.get("lr", 1e-3), betas=given.get("betas", [0.9, 0.999]),
                             weight_decay=given.get("weight_decay", 0.01), fused=True)


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batches(config):
    """Endless (inputs, targets): nine tokens of ten follow from the one before, as in Stagecraft's synthetic tokens."""
    generator = torch.Generator().manual_seed(1)
    vocabulary, length, size = config["data"]["classes"], config["data"]["shape"][0], config["train_batch_size"]
    table = torch.randint(vocabulary, (vocabulary,), generator=generator)
    while True:
        tokens = torch.randint(vocabulary, (size, length + 1), generator=generator)
        for t in range(1, length + 1):
            follows = torch.rand(size, generator=generator) < 0.9
            tokens[:, t] = torch.where(follows, table[tokens[:, t - 1]], tokens[:, t])
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(rank, stages, arguments, config, port):
    torch.set_num_threads(1)
    if arguments.bind:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    if stages > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=stages)
    module = make_stage(config, rank, stages)
    optimizer = make_optimizer(config, module)
    micro_batches = config["train_batch_size"] // config["train_micro_batch_size_per_gpu"]
    last = rank == stages - 1
    if stages > 1:
        kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[arguments.schedule]
        schedule = kind(PipelineStage(module, rank, stages, torch.device("cpu")), micro_batches, loss_fn=token_loss)

    def step(inputs, targets):
        optimizer.zero_grad()
        losses = []
        if stages == 1:
            for x, y in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches)):
                loss = token_loss(module(x), y)
                (loss / micro_batches).backward()
                losses.append(loss.detach())
        elif rank == 0:
            schedule.step(inputs)
        elif last:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        return sum(loss.item() for loss in losses) / micro_batches if losses else None

    data = batches(config)
    prepared = [next(data) for _ in range(min(arguments.steps, 50))]  # reading data is not what is compared
    ends, losses = [], []
    for i in range(arguments.steps):
        losses.append(step(*prepared[i % len(prepared)]))
        ends.append(time.perf_counter())
    if stages > 1:
        # Rank 0 has the clock, the last one the losses.
        gathered = [None] * stages
        dist.all_gather_object(gathered, losses)
        losses = gathered[-1]
        dist.destroy_process_group()
    if rank == 0:
        ms = [1e3 * (b - a) for a, b in zip(ends, ends[1:])]
        result = {"schedule": arguments.schedule, "stages": stages, "torch": torch.__version__,
                  "step_ms": ms, "loss": losses}
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(result, file)
        steady = sorted(ms[len(ms) // 3:])
        print(f"{arguments.schedule}: {steady[len(steady) // 2]:.1f} ms a step (median of the last {len(steady)}), "
              f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("--schedule", choices=["1f1b", "gpipe", "plain"], default="1f1b")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--bind", action="store_true", help="rank i runs on core i alone")
    parser.add_argument("--json", help="write step times and losses there")
    arguments = parser.parse_args()
    config = read_json(arguments.config)
    if arguments.schedule == "plain":
        train(0, 1, arguments, config, None)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stages = len(config["pipeline"]["cuts"]) + 1
    processes.spawn(train, args=(stages, arguments, config, port), nprocs=stages)


if __name__ == "__main__":
    main()
