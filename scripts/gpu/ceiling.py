#!/usr/bin/env python3
"""NCCL's own rates, by PyTorch: what transfers and sums of a run are measured against. Under mpirun, one rank
per GPU.

    mpirun -np 8 python3 ceiling.py

Prints a line per size: GB/s of a send to the next rank (alone, and of all pairs at once) and of an all-reduce
(bytes per rank over time, and the bus rate 2 (n - 1) / n of it, as nccl-tests counts).
"""

import os
import sys

import torch
import torch.distributed as dist

SIZES = [1 << 16, 1 << 20, 1 << 24, 1 << 28]
ROUNDS = 20


def seconds(call):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(ROUNDS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / ROUNDS


def main():
    if not torch.cuda.is_available():
        print("no device: PyTorch finds none")
        sys.exit(77)
    rank, world = (
        int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
        int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")),
    )
    torch.cuda.set_device(int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")) % torch.cuda.device_count())
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl", rank=rank, world_size=world)
    for size in SIZES:
        data = torch.zeros(size, dtype=torch.uint8, device="cuda")
        numbers = data.view(torch.float32)

        def one_pair(data=data):
            if rank == 0:
                dist.send(data, 1)
            elif rank == 1:
                dist.recv(data, 0)

        def all_pairs(data=data):
            if rank % 2 == 0 and rank + 1 < world:
                dist.send(data, rank + 1)
            elif rank % 2 == 1:
                dist.recv(data, rank - 1)

        alone = seconds(one_pair) if world > 1 else float("nan")
        pairs = seconds(all_pairs) if world > 1 else float("nan")
        total = seconds(lambda numbers=numbers: dist.all_reduce(numbers))
        if rank == 0:
            print(
                f"{size:>10} bytes: send {size / alone / 1e9:7.1f} GB/s, all pairs {size / pairs / 1e9:7.1f}"
                f" GB/s each, all-reduce {size / total / 1e9:7.1f} GB/s (bus"
                f" {2 * (world - 1) / world * size / total / 1e9:7.1f})",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
