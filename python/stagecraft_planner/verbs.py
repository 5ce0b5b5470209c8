"""plan(), compare(), explain(), check(), repair() and simulate(). Keywords are the options of the command's
verbs; `stagecraft VERB --help` has their bounds. Times are in ms, sizes in bytes, unless a name says
otherwise."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

from . import json_text
from .binary import Call
from .cluster import Cluster
from .comparison import Comparison, ScheduleComparison
from .document import Document, StrPath, read_text
from .errors import InputError, RefusedError
from .explanation import Explanation
from .nearest import keywords_checked
from .options import flag_of, options_of
from .plan import Plan
from .profile import Profile
from .program import Program
from .proof import Proof, Repaired
from .simulation import Simulation

if TYPE_CHECKING:
    from typing_extensions import Unpack

D = TypeVar("D", bound=Document)
RecomputeAsked = Literal["none", "all", "all_but_last", "auto"]


@keywords_checked
def plan(
    profile: Profile | StrPath,
    cluster: Cluster | StrPath,
    *,
    schedule: str | None = None,
    micro_batches: int | None = None,
    micro_batch_size: int | None = None,
    recompute: RecomputeAsked | None = None,
    stages: int | None = None,
    virtual_stages: int | None = None,
    cuts: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    replicate: bool | None = None,
    time_limit: float | None = None,
) -> Plan:
    """The plan with the shortest simulated step that fits into the cluster's memory.

    profile: a Profile, or the path of a profile.json or of a graph of PipeDream's profiler (.txt).
    cluster: a Cluster, or the path of a cluster.json. Cluster.with_memory() sets the cap per device.
    schedule: "1f1b" (the default), "zb_v", "auto", ...; settings behind a colon: "1f1b:warmup_extra=2".
    micro_batches: per step; 8 unless given. micro_batch_size: samples, a size in the profile.
    recompute: which forwards are repeated before their backward. "auto": for each stage the least that fits.
    stages, virtual_stages: how many, in all and per rank. cuts: the first layers of stages 1, 2, ...
    widths: replicas per stage. replicate: whether stages may have several (True unless given).
    time_limit: seconds to search; a fixed amount of work unless given.

    Raises InputError, and RefusedError where nothing fits, with what would.
    """
    given = locals()
    call = _planning(
        "plan",
        profile,
        cluster,
        _options_of_planning(given),
    )
    answer = call.run("--json", "--output={plan.json}", "--tables={tables.txt}")
    return Plan._planned(
        json_text.parse(answer.stdout, "plan"),
        text=answer.written["plan.json"],
        tables=answer.written["tables.txt"],
        asked=call,
    )


@overload
def explain(profile: Plan, /) -> Explanation: ...


@overload
def explain(
    profile: Profile | StrPath, cluster: Cluster | StrPath, **planning: Unpack[Planning]
) -> Explanation: ...


@keywords_checked
def explain(
    profile: Plan | Profile | StrPath,
    cluster: Cluster | StrPath | None = None,
    *,
    schedule: str | None = None,
    micro_batches: int | None = None,
    micro_batch_size: int | None = None,
    recompute: RecomputeAsked | None = None,
    stages: int | None = None,
    virtual_stages: int | None = None,
    cuts: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    replicate: bool | None = None,
    time_limit: float | None = None,
) -> Explanation:
    """Why each cut is where it is, what the step consists of, and what other devices, memory, links and
    micro-batches would change.

    Of what plan() has made, explain(plan) plans the same again; otherwise arguments are those of plan().
    """
    options = _options_of_planning(locals())
    if isinstance(profile, Plan):
        call = _again("explain", profile, cluster is None and not options)
    elif cluster is None:
        raise InputError(
            "explain: the cluster is missing: give a profile and a cluster, or what plan() has made"
        )
    else:
        call = _planning("explain", profile, cluster, options)
    answer = call.run("--json", "--output={plan.json}", "--tables={tables.txt}")
    document = json_text.parse(answer.stdout, "explanation")
    tables = answer.written["tables.txt"]
    explained = Plan._planned(document, text=answer.written["plan.json"], tables=tables, asked=call)
    return Explanation._of_plan(document["explanation"], explained, tables)


@overload
def compare(
    profile: Plan,
    /,
    *,
    schedules: str | Sequence[str] | None = None,
    micro_batches: int | None = None,
    steps: int | None = None,
    unit_costs: bool = False,
) -> ScheduleComparison: ...


@overload
def compare(
    profile: Profile | StrPath,
    cluster: Cluster | StrPath,
    *,
    schedules: str | Sequence[str] | None = None,
    batch: int | None = None,
    pareto: bool = False,
    jitter: int | None = None,
    choose_by: Literal["step", "p95"] | None = None,
    micro_batches: int | Literal["auto"] | None = None,
    micro_batch_size: int | None = None,
    recompute: RecomputeAsked | None = None,
    stages: int | None = None,
    virtual_stages: int | None = None,
    cuts: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    replicate: bool | None = None,
    time_limit: float | None = None,
) -> Comparison: ...


@keywords_checked
def compare(
    profile: Plan | Profile | StrPath,
    cluster: Cluster | StrPath | None = None,
    *,
    schedules: str | Sequence[str] | None = None,
    batch: int | None = None,
    pareto: bool = False,
    jitter: int | None = None,
    choose_by: Literal["step", "p95"] | None = None,
    micro_batches: int | Literal["auto"] | None = None,
    micro_batch_size: int | None = None,
    recompute: RecomputeAsked | None = None,
    stages: int | None = None,
    virtual_stages: int | None = None,
    cuts: Sequence[int] | None = None,
    widths: Sequence[int] | None = None,
    replicate: bool | None = None,
    time_limit: float | None = None,
    steps: int | None = None,
    unit_costs: bool = False,
) -> Comparison | ScheduleComparison:
    """Plans of several schedules and micro-batch sizes. Of a Plan: its stages under several schedules.

    profile, cluster: as for plan(); or a Plan, whose stages stay.
    schedules: names, each with its settings behind a colon, or "all" (the default): those that train as one
        device would, and of a plan every schedule.
    batch: samples per step, in micro-batches of every size in the profile.
    pareto: all plans that no other beats in both step time and memory.
    jitter: simulate each of the five best plans so many times, with times drawn from the profile's spreads.
    choose_by: "p95" takes the plan with the shortest 95th percentile under jitter.
    steps, unit_costs: of a Plan alone; steps to simulate, and 1 ms for each forward and half of a backward.
    Everything else is as for plan().
    """
    options = _options_of_planning(locals())
    options += options_of(schedules=schedules, batch=batch, jitter=jitter, choose_by=choose_by, steps=steps)
    options += flag_of("pareto", pareto) + flag_of("unit_costs", unit_costs)
    if isinstance(profile, Plan):
        if cluster is not None:
            raise InputError(
                "compare: a plan's stages stay, on the cluster that it was made for: leave the other out"
            )
        call = Call(
            "compare",
            ("{plan.json}", *options),
            {"plan.json": profile.to_json()},
            {"plan.json": profile._label},
        )
        return ScheduleComparison._answered(call.run("--json").stdout, call)
    if cluster is None:
        raise InputError("compare: the cluster is missing: give a profile and a cluster, or a plan")
    call = _planning("compare", profile, cluster, options)
    several = pareto or batch is not None or micro_batches == "auto" or _several(schedules)
    answer = call.run("--json", "--tables={tables.txt}", *(["--svg={out.svg}"] if several else []))
    comparison = Comparison._answered(answer.stdout, call, answer.written["tables.txt"])
    object.__setattr__(comparison, "_svg", answer.written.get("out.svg"))
    return comparison


@keywords_checked
def check(
    program: Plan | Program | StrPath,
    *,
    micro_batches: int | None = None,
    slots: int | None = None,
    transport: str | None = None,
) -> Proof:
    """Proves a plan or a schedule safe: it finishes, computes all once, reads the right weights and fits.

    program: a Plan, a Program, or the path of either in any form.
    micro_batches: per step; the plan's unless given. slots: receive slots per channel.
    transport: "rendezvous" (the default), "eager[:LIMIT[:BUFFER]]" in bytes, or "nccl"; behind commas
        "tagged" or "fifo", and what is a channel: "boundary", "payload" or "pair".

    Raises RefusedError for a program that is not safe; the exception's `proof` has the findings.
    """
    call = _of_program(
        "check", program, options_of(micro_batches=micro_batches, slots=slots, transport=transport)
    )
    try:
        return Proof._answered(call.run("--json").stdout, call)
    except RefusedError as error:
        _add_findings(error, call)
        raise


@keywords_checked
def repair(program: Program | StrPath, *, transport: str | None = None) -> Repaired:
    """Puts the loads of a schedule right and merges doubles; the order of computation stays.

    Raises RefusedError where that does not make it safe.
    """
    call = _of_program("check", program, options_of(transport=transport))
    answer = call.run("--json", "--repair={repaired.json}")
    proof = Proof.from_json(answer.stdout)
    return Repaired(Program.from_json(answer.written["repaired.json"]), proof.repaired, proof)


@keywords_checked
def simulate(
    program: Plan | Program | StrPath,
    *,
    micro_batches: int | None = None,
    steps: int | None = None,
    unit_costs: bool = False,
    jitter: int | None = None,
    seed: int | None = None,
    stage_spread: float | None = None,
    link_spread: float | None = None,
    from_: float | None = None,
    to: float | None = None,
) -> Simulation:
    """What a step takes, and why each rank is idle.

    program: a Plan with its costs, or with unit_costs any plan or schedule, or the path of one.
    micro_batches: per step; the plan's unless given. steps: how many; one unless given, and without a flush
        until the pipeline is steady.
    unit_costs: 1 ms for each forward and each half of a backward, and nothing for all else.
    jitter: simulate so many times with times that vary. seed: of the jitter.
    stage_spread, link_spread: interquartile range over median, where costs have no spread.
    from_, to: the part of it that svg() and trace() show, in ms.
    """
    call = _of_program(
        "simulate",
        program,
        options_of(
            micro_batches=micro_batches,
            steps=steps,
            jitter=jitter,
            seed=seed,
            stage_spread=stage_spread,
            link_spread=link_spread,
            from_=from_,
            to=to,
        )
        + flag_of("unit_costs", unit_costs),
    )
    return Simulation._answered(call.run("--json").stdout, call)


class Planning(TypedDict, total=False):
    """What plan() takes besides a profile and a cluster, and the others do as it does."""

    schedule: str | None
    micro_batches: int | None
    micro_batch_size: int | None
    recompute: RecomputeAsked | None
    stages: int | None
    virtual_stages: int | None
    cuts: Sequence[int] | None
    widths: Sequence[int] | None
    replicate: bool | None
    time_limit: float | None


def _options_of_planning(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a verb's arguments, those that are Planning's."""
    its = {name: given[name] for name in Planning.__annotations__ if name in given}
    replicate = its.pop("replicate")
    flag = () if replicate is None else flag_of("replicate", replicate, no="--no-replicate")
    return options_of(**its) + flag


def _several(schedules: str | Sequence[str] | None) -> bool:
    if isinstance(schedules, str):
        return schedules == "all"
    return schedules is None or len(schedules) > 1


def _taken(given: D | StrPath, kind: type[D], keyword: str) -> tuple[str, str, str]:
    """Name, contents and label of a file."""
    if isinstance(given, kind):
        return f"{keyword}.json", given.to_json(), given._label
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"{keyword}: expected a {kind.__name__} or a path, found a {type(given).__name__}")
    path = os.fspath(given)
    name, own = f"{keyword}.json", os.path.basename(path)
    if own.endswith(".txt"):  # a graph of PipeDream's, whose model is called as its file
        name = own if re.fullmatch(r"[\w.-]+", own) else f"{keyword}.txt"
    return name, read_text(path), path


def _planning(
    verb: str, profile: Profile | StrPath, cluster: Cluster | StrPath, options: tuple[str, ...]
) -> Call:
    layers, layers_text, layers_label = _taken(profile, Profile, "profile")
    machines, machines_text, machines_label = _taken(cluster, Cluster, "cluster")
    return Call(
        verb,
        (f"--profile={{{layers}}}", f"--cluster={{{machines}}}", *options),
        {layers: layers_text, machines: machines_text},
        {layers: layers_label, machines: machines_label},
    )


def _again(verb: str, plan: Plan, alone: bool) -> Call:
    if plan._asked is None:
        raise InputError(
            f"{verb}: {plan._label} was not made by plan() here, and does not say of which profile it is:"
            " give a profile and a cluster"
        )
    if not alone:
        raise InputError(
            f"{verb}: a plan brings its profile, its cluster and its keywords: leave the others out"
        )
    return Call(verb, plan._asked.options, plan._asked.files, plan._asked.labels)


def _of_program(verb: str, program: Plan | Program | StrPath, options: tuple[str, ...]) -> Call:
    if isinstance(program, (Plan, Program)):
        name = f"{program._kind}.json"
        return Call(verb, (f"{{{name}}}", *options), {name: program.to_json()}, {name: program._label})
    if not isinstance(program, (str, os.PathLike)):
        raise InputError(f"{verb}: expected a Plan, a Program or a path, found a {type(program).__name__}")
    path = os.fspath(program)
    name = f"program{os.path.splitext(path)[1]}"  # PyTorch's CSV is told by its name, too
    return Call(verb, (f"{{{name}}}", *options), {name: read_text(path)}, {name: path})


def _add_findings(error: RefusedError, call: Call) -> None:
    if error.document:
        error.proof = Proof._answered(error.document, call)
