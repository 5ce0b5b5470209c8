#!/usr/bin/env python3
"""What one rank's steady steps are made of: perf's samples by kind of work, and the profiler's table by
layer.

    python3 scripts/bench/step_profile.py [--config CONFIG] [--schedule 1f1b] [--rank 0] [--seconds 10]
    [--symbols]

`perf record` watches one rank of two for some seconds, after its first steps. Samples are counted by the
symbols' and libraries' names, so what a kernel calls is counted by itself (matrix products inside attention
are matrix products). Stagecraft's own share is what the binary's own code takes, all of it: no LibTorch is
linked into it. Needs /usr/bin/perf and leave to use it (kernel.perf_event_paranoid, or root).
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from measuring import ROOT, Table, Turns, Workbench, describe_machine, launch, ranks_of, run

# The first that matches `library symbol` wins.
KINDS = [
    ("Stagecraft's own code", r"^stagecraft "),
    ("MPI", r"^(libmpi|libopen-|mca_|libpmix)"),
    ("matrix products", r"gemm|mkl_blas|brgemm|dnnl.*matmul|^\[JIT\]|^\S*anon|mkl_.*(copy|pack)|mkldnn|dnnl"),
    ("attention", r"flash_attention|attention"),
    ("convolution", r"conv"),
    ("GELU", r"[Gg]elu"),
    ("ReLU", r"threshold|relu|clamp"),
    ("norms", r"[Nn]orm"),
    ("softmax and loss", r"softmax|nll_loss|vec_host|log_"),
    ("optimizer", r"adam|sgd"),
    ("pooling", r"max_pool"),
    ("adds and sums", r"add_kernel|sum_kernel|AddKernel|\bsum|cascade_sum|BinaryOps|add_clamp|axpy|reduce"),
    ("copies and fills", r"memcpy|memmove|memset|copy_|copy kernel|direct_copy|fill|cat_|index|embedding"),
    ("page faults, kernel", r"^\[(kernel|guest|unknown)"),
    ("allocator", r"malloc|free|_int_|cfree|posix_memalign|CPUAllocator|alloc_cpu"),
    ("LibTorch, other", r"^lib(torch|c10)"),
    ("other", r""),
]


def kind_of(library, symbol):
    return next(kind for kind, pattern in KINDS if re.search(pattern, f"{library} {symbol}"))


def record(bench, schedule, rank, seconds, data):
    """perf's samples of one rank that trains."""
    file, plan = bench.plan("step", schedule, stages=2)
    command, lines = bench.train("step", file, ranks_of(plan))
    with Turns(command, lines, bench.folder / "step.txt") as turns:
        before = turns.take(2, drop=3)
        found = [
            pid
            for pid in turns.members()
            if f"OMPI_COMM_WORLD_RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text()
            and Path(f"/proc/{pid}/comm").read_text().strip() == bench.binary.name[:15]
        ]
        turns.signal(18)  # SIGCONT
        run(
            "perf",
            "record",
            "-q",
            "-F",
            "499",
            "-p",
            ",".join(map(str, found)),
            "-o",
            data,
            "--",
            "sleep",
            seconds,
        )
    return before


def samples(data):
    """((library, symbol), count)"""
    done = subprocess.run(
        ["perf", "script", "-i", str(data), "-F", "ip,sym,dso"], capture_output=True, text=True, check=True
    )
    counts = Counter()
    for line in done.stdout.splitlines():
        match = re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line)
        if match:
            counts[(Path(match[2]).name or match[2], match[1])] += 1
    return counts


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=ROOT / "configs/bench_gpt.json")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--symbols", action="store_true", help="the busiest symbols of each kind too")
    arguments = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(arguments.binary, arguments.config, folder)
        bench.profile(20)
        record(bench, arguments.schedule, arguments.rank, arguments.seconds, Path(folder) / "perf.data")
        counts = samples(Path(folder) / "perf.data")
        layers = run(*launch(2, True), arguments.binary, "profile", bench.base, "--repeats", 20)
    kinds = {kind: Counter() for kind, _ in KINDS}
    for (library, symbol), count in counts.items():
        kinds[kind_of(library, symbol)][f"{symbol} ({library})"] += count
    total = sum(counts.values())
    print(
        f"{arguments.config.name}, {arguments.schedule}, rank {arguments.rank} of 2, {total} samples of the"
        " rank's time on a core"
    )
    table = Table("<kind of work", "share", widths=[28])
    for kind, symbols in sorted(kinds.items(), key=lambda item: -item[1].total()):
        if symbols:
            table.row(kind, f"{100 * symbols.total() / total:.1f} %")
            for symbol, count in symbols.most_common(6) if arguments.symbols else []:
                print(f"      {100 * count / total:5.1f} %  {symbol[:110]}")
    print("\n" + layers)


if __name__ == "__main__":
    main()
