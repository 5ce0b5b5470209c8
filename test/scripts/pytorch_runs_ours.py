#!/usr/bin/env python3
"""Runs a schedule that `stagecraft convert` wrote in PyTorch's runtime, one gloo process per rank, and
compares the gradients with one process's.

    pytorch_runs_ours.py FILE.csv compute_only|compute_comms [FILE.csv FORM ...]

Exit code 1 when a gradient differs by more than 1e-6.
"""

import os
import re
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime


def layers(count):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(count)]


def batch(micro_batches):
    torch.manual_seed(1)
    return torch.randn(2 * micro_batches, 8), torch.randn(2 * micro_batches, 8)


def reference(count, micro_batches):
    model = layers(count)
    inputs, targets = batch(micro_batches)
    for x, target in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches)):
        nn.functional.mse_loss(nn.Sequential(*model)(x), target).backward()
    return model


def worker(rank, stages_of, micro_batches, path, form, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=len(stages_of))
    count = sum(map(len, stages_of))
    model, own = layers(count), stages_of[rank]
    inputs, targets = batch(micro_batches)
    stages = [PipelineStage(model[index], index, count, torch.device("cpu")) for index in own]
    schedule = _PipelineScheduleRuntime(
        stages, micro_batches, loss_fn=nn.functional.mse_loss, scale_grads=False
    )
    schedule._load_csv(path, format=form)
    schedule.step(*([inputs] if 0 in own else []), **({"target": targets} if count - 1 in own else {}))
    right = reference(count, micro_batches)
    for index in own:
        for ours, theirs in zip(model[index].parameters(), right[index].parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)
    dist.destroy_process_group()


def run(path, form):
    rows = Path(path).read_text().splitlines()
    stages_of = [sorted({int(stage) for stage in re.findall(r"(\d+)F\d", row)}) for row in rows]
    micro_batches = 1 + max(int(number) for number in re.findall(r"\dF(\d+)", "\n".join(rows)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not by spawn: every process would import PyTorch again, which takes longer than the run.
    processes.start_processes(
        worker, (stages_of, micro_batches, path, form, port), nprocs=len(stages_of), start_method="fork"
    )
    print(f"{path}: {len(stages_of)} ranks, {micro_batches} micro-batches: gradients agree")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for given in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        run(*given)
