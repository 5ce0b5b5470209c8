"""What gpu_first.sh runs: lists of parts, the most valuable first. Commands run in the bundle's folder."""

import os
from dataclasses import dataclass, field

from bundle import ROOT

PROBE = [
    "bash",
    "-c",
    (
        "[ -x bin/probe ] || nvcc -std=c++17 -arch=native scripts/gpu/probe.cu -lcublas -o bin/probe || exit"
        " 1; exec bin/probe"
    ),
]
# Two ranks on one GPU pass for two hosts, since NCCL takes one rank per GPU and host.
OWN_HOST = ["bash", "-c", 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$0" "$@"']
# The same as torchrun --no-python starts them.
BY_STORE = [
    "bash",
    "-c",
    (
        "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29533; for rank in 0 1; do"
        ' RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID=rank$rank "$0" "$@" & all="$all $!"; done; code=0;'
        " for each in $all; do wait $each || code=$?; done; exit $code"
    ),
]
# What NCCL is told from outside goes to other hosts too.
USERS_NCCL = sorted(
    name for name in os.environ if name.startswith("NCCL_") and name != "NCCL_IGNORE_CPU_AFFINITY"
)


@dataclass
class Part:
    name: str
    seconds: int  # its limit
    shows: str
    command: list
    environment: dict = field(default_factory=dict)
    needs: int = 10  # seconds that must be left, or it is skipped


def ranks(count, command, hosts=None, forward=()):
    where = (
        [
            "--prefix",
            "{root}/openmpi",
            "--host",
            ",".join(f"{host}:{count // len(hosts)}" for host in hosts),
            "-x",
            "LD_LIBRARY_PATH",
            "-x",
            "OPAL_PREFIX",
            "-x",
            "NCCL_IGNORE_CPU_AFFINITY",
            "-x",
            "OMP_NUM_THREADS",
            "-x",
            "OMPI_MCA_reachable",
            "-x",
            f"MASTER_ADDR={hosts[0]}",
            *(word for variable in [*forward, *USERS_NCCL] for word in ("-x", variable)),
        ]
        if hosts
        else ["--oversubscribe"]
    )
    return ["openmpi/bin/mpirun", *where, "--bind-to", "none", "-np", str(count), *command]


def train(config, plan, run, *settings):
    """A run whose plan is in the bundle, and nothing is profiled; without `plan`, one that profiles and
    plans."""
    words = ["device=cuda", f"run_dir={{out}}/runs/{run}", "steps_per_print=5", *settings]
    return [
        "bin/stagecraft",
        "train",
        f"configs/{config}.json",
        *(["--plan", f"plans/{plan}.json"] if plan else []),
        *(word for setting in words for word in ("--set", setting)),
    ]


def shell(*commands):
    """One after the other, until one fails."""
    return ["bash", "-c", " && ".join(" ".join(f"'{word}'" for word in command) for command in commands)]


def test_gpu(*words):
    return ["bin/test_gpu", *map(str, words)]


def bench(config, rows, pairs, *more):
    return [
        "{python}",
        "scripts/bench/gpu.py",
        "--binary",
        "{root}/bin/stagecraft",
        "--plans",
        "plans",
        "--config",
        f"configs/{config}.json",
        "--pairs",
        str(pairs),
        "--rows",
        *rows,
        *more,
    ]


def drill(how, graphs=True, count=2, plan="bench_gpt.2", own_host=True):
    return [
        "{python}",
        "scripts/gpu/drill.py",
        "--how",
        how,
        "--timeout",
        "8",
        "--ranks",
        str(count),
        "--run",
        "{out}/runs/drill_" + f"{how}_{graphs}",
        "--",
        *(OWN_HOST if own_host else []),
        *train(
            "bench_gpt",
            plan,
            f"drill_{how}_{graphs}",
            "comms.backend=nccl",
            f"cuda.graphs={str(graphs).lower()}",
            "comms.timeout_s=8",
            "train_steps=100000",
        ),
    ]


LAZY, EAGER = {"CUDA_MODULE_LOADING": "LAZY"}, {"CUDA_MODULE_LOADING": "EAGER"}
LOOK = Part("doctor", 20, "libraries found, driver, device, this build", ["bash", "scripts/gpu/look.sh"])


def first():
    """One GPU, 420 s."""
    gpt2 = train("gpt2_small", "gpt2_small.1", "gpt2", "log.timeline_steps=4")
    measured = train(
        "gpt2_small", None, "predicted", "log.timeline_steps=4", "pipeline.schedule=1f1b", "pipeline.stages=1"
    )
    return [
        LOOK,
        Part(
            "cpu_mpi",
            30,
            "two ranks over the bundle's Open MPI",
            ranks(
                2,
                train(
                    "bench_gpt", "bench_gpt.2", "cpu_mpi", "device=cpu", "comms.backend=mpi", "train_steps=1"
                ),
            ),
        ),
        Part(
            "cpu_threads",
            20,
            "the same with ranks as threads",
            train(
                "bench_gpt",
                "bench_gpt.2",
                "cpu_threads",
                "device=cpu",
                "comms.backend=local",
                "train_steps=1",
            ),
        ),
        Part(
            "probe_lazy",
            30,
            "which calls wait for a spinning kernel, which streams share a queue",
            PROBE,
            LAZY,
        ),
        Part("probe_eager", 30, "the same with all kernels loaded at the start", PROBE, EAGER),
        Part(
            "probe_queues",
            30,
            "the same with 32 queues",
            PROBE,
            {**LAZY, "CUDA_DEVICE_MAX_CONNECTIONS": "32"},
        ),
        Part(
            "equal_threads",
            40,
            "kernels: runs equal the one-process loop to the bit",
            test_gpu("local", 997),
            needs=15,
        ),
        Part("equal_graphs", 40, "the same with recordings", test_gpu("local", 997, "graphs"), needs=15),
        Part(
            "gpt_launched",
            25,
            "a small GPT, each operator launched",
            train("bench_gpt", "bench_gpt.1", "launched", "cuda.graphs=false"),
        ),
        Part(
            "gpt_graphs",
            25,
            "the same with recordings",
            train("bench_gpt", "bench_gpt.1", "graphs", "cuda.graphs=true"),
        ),
        Part(
            "vgg",
            25,
            "convolutions, without TF32",
            train("bench_vgg", "bench_vgg.1", "vgg", "cuda.tf32=false"),
        ),
        Part(
            "operators",
            60,
            "each operator of captured models beside the CPU, and to the same bits again",
            test_gpu("operators", "data/operator_calls.jsonl"),
            needs=20,
        ),
        *(
            [
                Part(
                    "captured",
                    60,
                    "captured models: losses beside the CPU's",
                    ["{python}", "scripts/gpu/captured.py", "{out}/runs"],
                    needs=20,
                )
            ]
            if (ROOT / "captured").is_dir()  # a bundle made with --quick has none
            else []
        ),
        Part(
            "nccl_lazy",
            45,
            "NCCL between two ranks: bits, and whether kernels that load late stop it",
            ranks(2, test_gpu("nccl", 1999)),
            LAZY,
            needs=20,
        ),
        Part(
            "nccl_eager",
            45,
            "the same with all kernels loaded at the start",
            ranks(2, test_gpu("nccl", 1999)),
            EAGER,
            needs=20,
        ),
        Part("staged", 25, "through host memory and MPI", ranks(2, test_gpu("staged", 1999))),
        Part(
            "drill_stop",
            40,
            "a rank that stops: the other one says so and ends in time",
            drill("stop"),
            needs=30,
        ),
        Part("drill_stop_launched", 40, "the same without recordings", drill("stop", graphs=False), needs=30),
        Part("drill_kill", 40, "a rank that is killed", drill("kill"), needs=30),
        Part(
            "gpt2_small",
            45,
            "ms per step, share of the peak, idle share, against the plan's proof",
            shell(gpt2, ["bin/stagecraft", "report", "{out}/runs/gpt2"]),
            needs=20,
        ),
        Part(
            "predicted",
            60,
            "profiled here, planned and run: the report's measured times against the prediction",
            shell(measured, ["bin/stagecraft", "report", "{out}/runs/predicted"]),
            needs=30,
        ),
        Part(
            "memory",
            45,
            "used memory of the card beside what the run proved and asked for",
            [
                "{python}",
                "scripts/gpu/watch_memory.py",
                "--",
                *train("gpt2_small", "gpt2_small.1", "memory", "train_steps=6"),
            ],
            needs=20,
        ),
        Part(
            "beside_pytorch",
            90,
            "step times beside PyTorch's eager loop",
            bench("gpt2_small", ["plain"], 1),
            needs=50,
        ),
        Part(
            "two_stages",
            40,
            "two stages as threads on the one GPU",
            train("gpt2_small", "gpt2_small.2", "two_stages"),
            needs=20,
        ),
        Part(
            "many_in_flight",
            40,
            "300 micro-batches in flight per stage: recordings stay",
            train(
                "bench_gpt",
                "bench_gpt.fill_drain_300",
                "fill_drain",
                "train_batch_size=1200",
                "train_steps=4",
                "cuda.graphs=true",
                "steps_per_print=1",
            ),
            needs=20,
        ),
    ]


def second():
    """One GPU: what the first list found and was mended, step times with their spread, then all of the
    equality cases."""
    parts = [
        LOOK,
        *(part for part in first() if part.name.startswith(("nccl", "staged", "drill"))),
        Part(
            "bench_gpt2_small",
            300,
            "step times beside PyTorch, over stages, with recordings and without",
            bench("gpt2_small", ["plain", "graphs", "launched", "compiled", "stages2", "stages4"], 3),
            needs=100,
        ),
        Part(
            "operators_free",
            120,
            "operators of captured models without deterministic mode",
            test_gpu("operators", "data/operator_calls.jsonl", "free"),
        ),
        Part("equal_threads_all", 240, "threads", test_gpu("local")),
        Part("equal_graphs_all", 240, "threads, with recordings", test_gpu("local", 97, "graphs")),
        Part("nccl_2", 180, "NCCL, two ranks", ranks(2, test_gpu("nccl", 197))),
        Part("nccl_graphs", 180, "with recordings", ranks(2, test_gpu("nccl", 397, "graphs"))),
        Part("nccl_4", 180, "four ranks", ranks(4, test_gpu("nccl", 397))),
        Part("nccl_replicas", 180, "replicas on three ranks", ranks(3, test_gpu("nccl", 37, "replicas"))),
        Part("staged_all", 120, "through host memory and MPI", ranks(2, test_gpu("staged"))),
    ]
    for stages in (1, 2, 4):
        parts.append(
            Part(
                f"gpt_{stages}",
                60,
                f"{stages} stages as threads",
                train("bench_gpt", f"bench_gpt.{stages}", f"gpt_{stages}"),
            )
        )
        parts.append(
            Part(
                f"gpt_bf16_{stages}",
                60,
                "the same in bf16",
                train("bench_gpt", f"bench_gpt_bf16.{stages}", f"gpt_bf16_{stages}", "bf16.enabled=true"),
            )
        )
    for turn in (1, 2):
        parts += [
            Part(
                f"small_layers_graphs_{graphs}_{turn}",
                60,
                "layers so small that launching counts; in turns",
                train(
                    "bench_gpt",
                    "bench_gpt_narrow.1",
                    f"small_{graphs}_{turn}",
                    f"cuda.graphs={graphs}",
                    "model.width=128",
                    "train_steps=60",
                ),
            )
            for graphs in ("false", "true")
        ]
    return [
        *parts,
        Part(
            "gpt_nccl",
            60,
            "a run of two ranks over NCCL",
            ranks(2, OWN_HOST + train("bench_gpt", "bench_gpt.2", "gpt_nccl", "comms.backend=nccl")),
        ),
        Part(
            "gpt_store",
            60,
            "the same without MPI, as torchrun --no-python starts it",
            BY_STORE + train("bench_gpt", "bench_gpt.2", "gpt_store", "comms.backend=nccl"),
        ),
        Part(
            "gpt_replicas",
            60,
            "two replicas over NCCL",
            ranks(
                2, OWN_HOST + train("bench_gpt", "bench_gpt.replicas_2", "gpt_replicas", "comms.backend=nccl")
            ),
        ),
        Part(
            "bench_gpt2_medium",
            400,
            "the same, larger",
            bench("gpt2_medium", ["plain", "compiled", "stages2"], 3),
            needs=120,
        ),
        Part(
            "bench_small_layers",
            200,
            "small layers",
            bench("bench_gpt", ["plain", "launched", "graphs"], 3),
            needs=60,
        ),
        Part(
            "bench_vgg_tf32",
            200,
            "convolutions in TF32",
            bench("bench_vgg", ["plain", "compiled"], 3, "--tf32"),
            needs=60,
        ),
        Part(
            "sanitizer",
            300,
            "NVIDIA's memory checker on a few runs",
            ["compute-sanitizer", "--error-exitcode", "1", *test_gpu("local", 1999)],
            needs=120,
        ),
    ]


def gpt2_medium(run, stages, *settings, plan=None, hosts=None, count=None, forward=()):
    return ranks(
        count or stages,
        train(
            "gpt2_medium",
            plan or f"gpt2_medium.{stages}",
            run,
            "comms.backend=nccl",
            "train_micro_batch_size_per_gpu=1",
            *settings,
        ),
        hosts,
        forward,
    )


def machine(count):
    """One host with `count` GPUs: what a single GPU cannot show."""
    parts = [
        LOOK,
        Part(
            "ceiling",
            90,
            "NCCL's own rates between two GPUs and over all: what transfers are measured against",
            ranks(count, ["{python}", "scripts/gpu/ceiling.py"]),
        ),
        Part("nccl_4", 120, "bits over NVLink", ranks(4, test_gpu("nccl", 1999))),
        Part("nccl_replicas", 120, "sums over replicas", ranks(3, test_gpu("nccl", 397, "replicas"))),
        Part(
            "links",
            120,
            "the link that the planner would take",
            ranks(
                2,
                [
                    "bin/stagecraft",
                    "profile",
                    "configs/bench_gpt.json",
                    "--set",
                    "device=cuda",
                    "--set",
                    "profiler.repeats=5",
                    "--links",
                ],
            ),
        ),
        Part("1f1b", 120, f"1F1B over {count} GPUs", gpt2_medium("1f1b", count)),
        Part(
            "drill_stop",
            40,
            "a rank that stops, over NVLink",
            drill("stop", count=4, plan="bench_gpt.4", own_host=False),
        ),
    ]
    parts += [
        Part(
            f"1f1b_blocks_{blocks}",
            90,
            "blocks of each NCCL kernel",
            gpt2_medium(f"1f1b_blocks_{blocks}", count),
            {"NCCL_MIN_CTAS": "1", "NCCL_MAX_CTAS": str(blocks)},
        )
        for blocks in (1, 2, 8, 16)
    ]
    return [
        *parts,
        Part(
            "1f1b_clusters",
            90,
            "blocks that begin in clusters of 4, NCCL's default",
            gpt2_medium("1f1b_clusters", count),
            {"NCCL_CGA_CLUSTER_SIZE": "4"},
        ),
        Part(
            "1f1b_sockets",
            90,
            "without NVLink: how much the link matters",
            gpt2_medium("1f1b_sockets", count),
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
        ),
        Part(
            "1f1b_staged",
            90,
            "through host memory and MPI",
            gpt2_medium("1f1b_staged", count, "comms.backend=mpi"),
        ),
        Part(
            "1f1b_launched",
            90,
            "without recordings",
            gpt2_medium("1f1b_launched", count, "cuda.graphs=false"),
        ),
        Part(
            "replicas_ordered",
            120,
            "2 stages of replicas, sums in order",
            gpt2_medium("ordered", count, plan=f"gpt2_medium.2x{count // 2}", count=count),
        ),
        Part(
            "replicas_nccl",
            120,
            "the same, NCCL's order",
            gpt2_medium(
                "nccl_order", count, "comms.replica_sum=nccl", plan=f"gpt2_medium.2x{count // 2}", count=count
            ),
        ),
    ]


def two_hosts(hosts, per_host):
    """Hosts that reach each other by ssh, with the bundle in the same folder."""
    every = per_host * len(hosts)
    sockets = {"NCCL_SOCKET_IFNAME": None}  # NCCL chooses, unless the user has
    return [
        LOOK,
        Part(
            "ceiling_1_each",
            90,
            "NCCL's rate between the hosts, one GPU each",
            ranks(len(hosts), ["{python}", "scripts/gpu/ceiling.py"], hosts),
            sockets,
        ),
        Part(
            "ceiling_all",
            120,
            "with all GPUs",
            ranks(every, ["{python}", "scripts/gpu/ceiling.py"], hosts),
            sockets,
        ),
        Part("nccl_hosts", 120, "bits between hosts", ranks(2, test_gpu("nccl", 1999), hosts), sockets),
        Part("1f1b_hosts", 180, f"1F1B over {every} GPUs", gpt2_medium("hosts", every, hosts=hosts), sockets),
        Part(
            "1f1b_hosts_no_ib",
            180,
            "the same over sockets",
            gpt2_medium("hosts_sockets", every, hosts=hosts, forward=["NCCL_IB_DISABLE=1"]),
            sockets,
        ),
        Part(
            "replicas_hosts",
            180,
            f"{per_host} stages, a replica on each host",
            gpt2_medium(
                "hosts_replicas",
                per_host,
                plan=f"gpt2_medium.{per_host}x{len(hosts)}",
                hosts=hosts,
                count=every,
            ),
            sockets,
        ),
    ]
