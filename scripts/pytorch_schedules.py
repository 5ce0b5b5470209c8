#!/usr/bin/env python3
"""Has PyTorch make all its pipeline schedules and puts each through `stagecraft check`.

    python scripts/pytorch_schedules.py [--stagecraft build/stagecraft] [--golden FOLDER] [--keep FOLDER]
    [--json OUT]
                                        [--ranks P...] [--micro-batches M...] [--check ARGUMENT...]

Needs a Python with torch (scripts/python), no model and no second process: stages are stand-ins, as PyTorch's
schedules only ask them for their numbers. Prints a Markdown table: what each schedule class makes over a grid
of ranks, micro-batches and stages per rank, as it stands in PyTorch's CSV, compute only and with
communication.

GPipe and 1F1B are run by loops of their own, not from their order; what those loops do is recorded call by
call and checked as well ("as run"). In a batch that sends and receives, receives are written first: NCCL
posts a batch as one.

A refusal that hangs on a rule of Stagecraft's alone (gradients added in micro-batch order) is told from a
fault: the schedule is checked once more with each weight gradient added at the end, in order, and all else
where it was.
"""

import argparse
import collections
import csv
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch.distributed.pipelining.schedules as pipelining
from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

COMPUTE = {pipelining.F, pipelining.B, pipelining.I, pipelining.W}
TRANSFERS = {pipelining.SEND_F, pipelining.RECV_F, pipelining.SEND_B, pipelining.RECV_B}
RANKS = (1, 2, 3, 4, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 8, 12, 16, 32)
STAGES_A_RANK = (1, 2, 3)

# Any number of stages per rank, dealt round; two per rank, down and up again; one.
LOOPED = ("ScheduleLoopedBFS", "ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble")
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
SINGLE = ("ScheduleGPipe", "Schedule1F1B")


class Stage:
    """A stand-in for a PipelineStage: knows its numbers and writes down what it is asked to do."""

    submod = None
    has_backward = True

    def __init__(self, index, stages, rank, ranks, log=None):
        self.stage_index, self.num_stages = index, stages
        self.group_rank, self.group_size = rank, ranks
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.log = log

    def action(self, kind, micro_batch):
        return pipelining._Action(self.stage_index, kind, micro_batch)

    def get_fwd_recv_ops(self, micro_batch):
        return [] if self.is_first else [self.action(pipelining.RECV_F, micro_batch)]

    def get_fwd_send_ops(self, micro_batch):
        return [] if self.is_last else [self.action(pipelining.SEND_F, micro_batch)]

    def get_bwd_recv_ops(self, micro_batch):
        return [] if self.is_last else [self.action(pipelining.RECV_B, micro_batch)]

    def get_bwd_send_ops(self, micro_batch):
        return [] if self.is_first else [self.action(pipelining.SEND_B, micro_batch)]

    def forward_one_chunk(self, micro_batch, *_, **__):
        self.log.append(self.action(pipelining.F, micro_batch))

    def backward_one_chunk(self, micro_batch, **_):
        self.log.append(self.action(pipelining.B, micro_batch))

    def release_fwd_send_outputs(self, _):  # since torch 2.15
        pass

    def perform_reduce_grad(self, _):
        self.log.append(self.action(pipelining.REDUCE_GRAD, None))


def make(name, ranks, stages_a_rank, micro_batches, rank=0, log=None):
    """The schedule object of one rank. PyTorch raises where it has no such schedule."""
    stages = ranks * stages_a_rank
    own = generate_rank_to_stage_mapping(ranks, stages, style="v" if name in V_SHAPED else "loop")[rank]
    made = [Stage(index, stages, rank, ranks, log) for index in own]
    return getattr(pipelining, name)(made[0] if name in SINGLE else made, micro_batches)


def rows_of(order):
    return [order[rank] for rank in sorted(order)]


def record(name, ranks, micro_batches):
    """What a schedule's own loop does on each rank."""
    rows = []
    for rank in range(ranks):
        log = []
        schedule = make(name, ranks, 1, micro_batches, rank, log)
        schedule._initialize_stage = lambda *_: None
        batches = pipelining._batch_p2p, pipelining._sorted_batch_p2p
        pipelining._batch_p2p = lambda ops, desc=None, log=log: log.extend(sorted(ops, key=is_send)) or []
        # Splits a batch by peer; those of one stage and direction have one.
        pipelining._sorted_batch_p2p = lambda ops, desc=None: {0: pipelining._batch_p2p(ops)}
        try:
            schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        finally:
            pipelining._batch_p2p, pipelining._sorted_batch_p2p = batches
        rows.append(log)
    return rows


def is_send(action):
    return action.computation_type in (pipelining.SEND_F, pipelining.SEND_B)


def to_csv(rows):
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def form_of(rows):
    """The form of `stagecraft convert` that the rows are in."""
    words = {action.computation_type.name for row in flat(rows) for action in row}
    if not any(word.startswith(("SEND", "RECV")) for word in words):
        return "csv"
    return "csv-comms" if any(word.startswith("WAIT_SEND") for word in words) else "csv-comms-2.11"


def flat(rows):
    """Without idle steps; overlapped actions one after the other, as PyTorch runs them."""
    return [
        [part for action in row if action is not None for part in action.sub_actions or (action,)]
        for row in rows
    ]


def gradients_in_order(rows):
    """The same forwards, input gradients and transfers, with every weight gradient at the end, by
    micro-batch."""
    changed = []
    for row in flat(rows):
        kept, weights = [], []
        for action in row:
            if action.computation_type in (pipelining.B, pipelining.W):
                weights.append(action._replace(computation_type=pipelining.W))
            if action.computation_type == pipelining.B:
                kept.append(action._replace(computation_type=pipelining.I))
            elif action.computation_type != pipelining.W:
                kept.append(action)
        changed.append(kept + sorted(weights, key=lambda a: (a.stage_index, a.microbatch_index)))
    return changed


def crossed(rows):
    """Transfers between two ranks that their two sides name in different orders: PyTorch's carry no tags.
    None, or the first."""
    rank_of = {
        a.stage_index: rank
        for rank, row in enumerate(flat(rows))
        for a in row
        if a.computation_type in COMPUTE
    }
    sent, received = collections.defaultdict(list), collections.defaultdict(list)
    for rank, row in enumerate(flat(rows)):
        for action in row:
            kind, stage = action.computation_type, action.stage_index
            if kind not in TRANSFERS:
                continue
            step = 1 if kind in (pipelining.SEND_F, pipelining.RECV_B) else -1
            payload = "activation" if kind in (pipelining.SEND_F, pipelining.RECV_F) else "gradient"
            if is_send(action):
                sent[rank, rank_of[stage + step]].append((payload, stage, action.microbatch_index))
            else:
                received[rank_of[stage + step], rank].append((payload, stage + step, action.microbatch_index))
    for pair in sorted(set(sent) | set(received)):
        for a, b in zip(sent[pair], received[pair]):
            if a != b:
                return f"rank {pair[0]} sends {a}, rank {pair[1]} expects {b}"
    return None


def pytorch_says(rows, micro_batches, dry_run=True):
    """PyTorch's own verdict: its validator, and with communication its dry run as well. None where it has no
    objection."""
    rows = [
        [a for a in row if a is None or a.computation_type in COMPUTE | TRANSFERS or a.sub_actions]
        for row in rows
    ]
    stages = 1 + max(a.stage_index for row in flat(rows) for a in row)
    try:
        rank_of = pipelining._validate_schedule(dict(enumerate(rows)), len(rows), stages, micro_batches)
        if dry_run and any(a.computation_type in TRANSFERS for row in flat(rows) for a in row):
            out, sys.stdout = sys.stdout, io.StringIO()
            try:
                pipelining._simulate_comms_compute(dict(enumerate(flat(rows))), lambda s: rank_of[s], stages)
            finally:
                sys.stdout = out
    except Exception as error:
        return " ".join((str(error).splitlines() or [type(error).__name__])[0].split())
    return None


class Checker:
    def __init__(self, command, folder, extra):
        self.command, self.folder, self.extra = command, folder, extra
        self.files = 0

    def check(self, name, text):
        """(kind, message) of every finding; of a file that is not read, what was wrong with it."""
        path = self.folder / f"{name}.csv"
        path.write_text(text, newline="")
        self.files += 1
        run = subprocess.run(
            [self.command, "check", path, "--json", *self.extra],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode in (0, 3):
            return [(f["kind"], f["message"]) for f in json.loads(run.stdout).get("findings", [])]
        if run.returncode == 2:
            return [("input", run.stderr.strip().split(str(path) + ": ")[-1])]
        raise SystemExit(f"{path}: stagecraft check ended with {run.returncode}: {run.stderr}")

    def same_bytes(self, name, form):
        """Whether the file comes back as it was."""
        path = self.folder / f"{name}.csv"
        run = subprocess.run([self.command, "convert", path, "--to", form], capture_output=True, check=False)
        return run.returncode == 0 and run.stdout == path.read_bytes()


class Case:
    """One file's verdicts."""

    def __init__(self, checker, name, rows, micro_batches, dry_run=True):
        self.name, self.theirs = name, pytorch_says(rows, micro_batches, dry_run)
        self.communicates = any(a.computation_type in TRANSFERS for row in flat(rows) for a in row)
        self.findings = checker.check(name, to_csv(rows))
        self.same = checker.same_bytes(name, form_of(rows))
        self.crossed = crossed(rows) if self.communicates else None
        self.ordered = None
        if self.findings and self.findings[0][0] != "input":
            self.ordered = checker.check(name + ".ordered", to_csv(gradients_in_order(rows)))

    @property
    def verdict(self):
        if not self.findings:
            return "accepted"
        return "our rule" if self.ordered == [] else "fault"

    def first_finding(self):
        kind, message = (self.ordered or self.findings)[0]
        return f"{kind}: {message}"


def generated(checker, ranks, micro_batches):
    """Cases by the row of the table they belong to, and the sizes PyTorch itself refuses."""
    rows, refused = collections.defaultdict(list), collections.defaultdict(list)
    for name in SINGLE + LOOPED + V_SHAPED:
        short = name.removeprefix("Schedule")
        for p in ranks:
            for v in (1,) if name in SINGLE else (2,) if name in V_SHAPED else STAGES_A_RANK:
                for m in micro_batches:
                    size = f"{short}-p{p}-m{m}-v{v}"
                    try:
                        schedule = make(name, p, v, m)
                    except (ValueError, AssertionError) as error:
                        refused[short].append((size, str(error)))
                        continue
                    if name in SINGLE:
                        order = rows_of(schedule._get_pipeline_order())
                        rows[f"{short}, its order"].append(Case(checker, size, order, m))
                        rows[f"{short}, as run"].append(
                            # Their dry run wants sends before receives, which a batch has no order for.
                            Case(checker, size + "-run", record(name, p, m), m, dry_run=False)
                        )
                    else:
                        rows[f"{short}, compute only"].append(
                            Case(checker, size, rows_of(schedule.pipeline_order), m)
                        )
                        rows[f"{short}, with communication"].append(
                            Case(checker, size + "-comms", rows_of(schedule.pipeline_order_with_comms), m)
                        )
    return rows, refused


def golden(checker, folder):
    cases = []
    for path in sorted(folder.glob("*.csv")):
        rows = [
            [pipelining._Action.from_str(cell) for cell in row] for row in csv.reader(path.open(newline=""))
        ]
        micro_batches = 1 + max(
            a.microbatch_index for row in flat(rows) for a in row if a.microbatch_index is not None
        )
        case = Case(checker, path.stem, rows, micro_batches)
        # The file itself, as it lies there: other line ends, other spellings.
        case.findings = checker.check(path.stem, path.read_bytes().decode())
        case.same = checker.same_bytes(path.stem, form_of(rows))
        cases.append(case)
    return cases


def planted():
    """Schedules of two ranks and two micro-batches: what is wrong with them, and their rows."""
    good = [
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
        "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
    ]
    late = [good[0], "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1"]
    texts = {
        "nothing": good,
        "a forward twice": ["0F0,0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"],
        "the last rank's forwards off by one": ["0F0,0F1,0B0,0B1", "1F1,1B0,1F2,1B1"],
        "the weight part before the input part": ["0F0,0F1,0B0,0B1", "1F0,1W0,1I0,1F1,1B1"],
        "the weight part twice": ["0F0,0F1,0I0,0W0,0I1,0W1,0W1", "1F0,1B0,1F1,1B1"],
        "compute orders that wait for each other": ["0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1"],
        "a send that is missing": [good[0].replace("0SEND_F1,", ""), good[1]],
        "a receive behind the forward that needs it": [
            good[0],
            good[1].replace("1RECV_F0,1RECV_F1,1F0", "1RECV_F1,1F0,1RECV_F0"),
        ],
        "receives in another order than the sends": [
            good[0],
            good[1].replace("1RECV_F0,1RECV_F1", "1RECV_F1,1RECV_F0"),
        ],
        "both ranks send before they post what the other sends": late,
    }
    for what, lines in texts.items():
        yield what, [[pipelining._Action.from_str(cell) for cell in line.split(",")] for line in lines]


def count(cases, verdict):
    return sum(case.verdict == verdict for case in cases) or ""


def print_tables(rows, refused, goldens, faults):
    print(
        "| schedule | sizes | accepted | refused by a rule of ours | faulty | PyTorch's checks object | "
        "orders of untagged transfers differ | CSV comes back as it was |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, cases in rows.items():
        objections = sum(case.theirs is not None for case in cases) or ""
        print(
            f"| {name} | {len(cases)} | {count(cases, 'accepted')} | {count(cases, 'our rule')} |"
            f" {count(cases, 'fault')} | {objections} |"
            f" {sum(case.crossed is not None for case in cases) or ''} | {sum(case.same for case in cases)} |"
        )
    print("\nWhat is behind them, by the first such size:\n")
    for name, cases in rows.items():
        for verdict in ("our rule", "fault"):
            hit = next((case for case in cases if case.verdict == verdict), None)
            if hit is not None:
                kind, message = hit.findings[0] if verdict == "our rule" else (hit.ordered or hit.findings)[0]
                print(f"- {name}, {verdict}: {hit.name}: {kind}: {message}")
    for name, sizes in refused.items():
        print(
            f"- {name}: PyTorch refuses {len(sizes)} sizes, such as {sizes[0][0]}:"
            f" {' '.join(sizes[0][1].split())}"
        )
    if goldens:
        print(
            "\n| golden file | PyTorch's checks | stagecraft check | comes back as it was"
            " |\n|---|---|---|---|"
        )
        for case in goldens:
            verdict = (
                case.verdict if case.verdict == "accepted" else f"{case.verdict}: {case.first_finding()}"
            )
            print(f"| {case.name} | {case.theirs or 'pass'} | {verdict} | {'yes' if case.same else 'no'} |")
    print("\n| planted fault | PyTorch's checks | stagecraft check |\n|---|---|---|")
    for what, case in faults:
        found = f"{case.findings[0][0]}: {case.findings[0][1]}" if case.findings else "accepted"
        found += f", but {case.crossed}" if case.crossed and not case.findings else ""
        print(f"| {what} | {case.theirs or 'pass'} | {found} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--stagecraft", default="build/stagecraft", help="the command; default: build/stagecraft"
    )
    parser.add_argument("--golden", type=Path, help="a folder of CSV files to check as well")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, metavar="P")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=MICRO_BATCHES, metavar="M")
    parser.add_argument("--keep", type=Path, help="leave the CSV files there")
    parser.add_argument("--json", type=Path, help="write every verdict there")
    parser.add_argument("--check", nargs="*", default=[], help="more arguments for `stagecraft check`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        checker = Checker(arguments.stagecraft, folder, arguments.check)
        rows, refused = generated(checker, arguments.ranks, arguments.micro_batches)
        goldens = golden(checker, arguments.golden) if arguments.golden else []
        faults = [
            (what, Case(checker, f"planted-{i}", rows_, 2)) for i, (what, rows_) in enumerate(planted())
        ]
        print_tables(rows, refused, goldens, faults)
        if arguments.json:
            cases = (
                [case for of_row in rows.values() for case in of_row] + goldens + [case for _, case in faults]
            )
            arguments.json.write_text(json.dumps([vars(case) for case in cases], indent=1))
    print(f"\n{checker.files} files checked.", file=sys.stderr)


if __name__ == "__main__":
    main()
