"""The planner as a library: objects that are the command's files, functions that are its verbs, and what goes
wrong."""

import contextlib
import copy
import dataclasses
import inspect
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from places import BUILD, ENVIRONMENT, SOURCE

PLANNER = str(BUILD / "planner" / "stagecraft")
if not os.path.exists(PLANNER):
    pytest.skip(f"there is no {PLANNER}", allow_module_level=True)
os.environ["STAGECRAFT_PLANNER"] = ENVIRONMENT["STAGECRAFT_PLANNER"] = PLANNER

import stagecraft_planner as sp
from stagecraft_planner import json_text, typed

PROFILE = SOURCE / "test/data/profiles/gpt_10_layers.json"
CLUSTER = SOURCE / "configs/clusters/one-machine-4-pcie.json"
RUN = SOURCE / "configs/bench_gpt.json"
FOUR_STAGES = SOURCE / "test/data/plans/four_stages.json"
STRAIGHT = dict(micro_batch_size=4, replicate=False)
AS_OPTIONS = ["--micro-batch-size", "4", "--no-replicate"]
# The load of micro-batch 1 is missing on rank 1.
BROKEN = """stagecraft program 1
stages 0 1
groups 2
rank 0: L0 F0 L1 F1 B0 B1 S0 P0
rank 1: L0 F0 F1 P0 B0 B1 S0
"""
DEADLOCK = "stagecraft program 1\nstages 0 1\ngroups 1\nrank 0: L0 B0 F0 S0 P0\nrank 1: L0 F0 B0 S0\n"


@pytest.fixture(scope="module")
def profile():
    return sp.Profile.load(PROFILE)


@pytest.fixture(scope="module")
def cluster():
    return sp.Cluster.load(CLUSTER)


@pytest.fixture(scope="module")
def plan(profile, cluster):
    return sp.plan(profile, cluster, **STRAIGHT)


@pytest.fixture
def files(scratch, profile, cluster, plan):
    """The same as files, by the names that texts give to what was not loaded."""
    profile.save("profile.json")
    cluster.save("cluster.json")
    plan.save("plan.json")
    return ["--profile", "profile.json", "--cluster", "cluster.json"]


def command(*arguments):
    done = subprocess.run([PLANNER, *map(str, arguments)], capture_output=True, check=True)
    return done.stdout.decode()  # with the ends of lines as they are


def nameless(document):
    """Without the path that it was loaded from."""
    return type(document).from_json(document.to_json())


# The objects are the files.


@pytest.mark.parametrize("kind", [sp.Profile, sp.Cluster, sp.Plan, sp.Explanation])
def test_fields_are_those_of_the_schema(kind):
    def compare(fields, schema, at):
        properties = schema["properties"]
        assert [field.key for field in fields] == list(properties), at
        assert [field.key for field in fields if field.required] == schema.get("required", []), at
        for field in fields:
            given, hint = properties[field.key], field.type
            optional = typed.optional_of(hint)
            assert ("anyOf" in given) == (optional is not None), f"{at}/{field.key}"
            if optional is not None:
                given, hint = given["anyOf"][0], optional
            elif not field.required:
                default = properties[field.key]["default"]
                written = typed.write(field.default)
                assert (list(written) if written == () else written) == default, f"{at}/{field.key}"
            while given.get("type") == "array":
                given, hint = given["items"], hint.__args__[0]
            words = {"integer": int, "number": float, "string": str, "boolean": bool}
            if "enum" in given:
                assert list(hint.__args__) == given["enum"], f"{at}/{field.key}"
            elif given["type"] == "object":
                compare(typed.fields_of(hint), given, f"{at}/{field.key}")
            else:
                assert hint is words[given["type"]], f"{at}/{field.key}"

    compare(typed.fields_of(kind), json.loads(command("schema", kind._kind)), "")


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        (sp.Profile, [PROFILE]),
        (sp.Cluster, sorted((SOURCE / "configs/clusters").glob("*.json"))),
        (
            sp.Plan,
            [FOUR_STAGES, *(SOURCE / f"docs/pictures/{n}.json" for n in ("1f1b", "unet", "gpt2_tied"))],
        ),
    ],
)
def test_files_come_back_byte_for_byte(kind, paths, scratch):
    for path in paths:
        loaded = kind.load(path)
        loaded.save("again.json")
        assert Path("again.json").read_bytes() == path.read_bytes()
        assert kind.load("again.json") == kind.from_json(loaded.to_json()) == loaded
        # From the fields alone: another text with the same meaning.
        assert kind.from_json(dataclasses.replace(loaded).to_json()) == loaded


def test_what_is_made_of_fields_is_written_as_the_command_writes_it(scratch, profile, cluster):
    for bandwidth, latency in [(1e15, 1e-5), (1.5e16, 0.0001), (123456789012345.0, 0.1), (1e17, 9999.5)]:
        fast = sp.Cluster.of_machines(4, bytes_per_second=bandwidth, latency_ms=latency)
        made = sp.plan(profile, fast, **STRAIGHT)
        assert dataclasses.replace(made).to_json() == made.to_json()
    program = made.to_program()
    assert dataclasses.replace(program).to_json() == program.to_json()
    explained = sp.explain(made)
    assert dataclasses.replace(explained).to_json() == explained.to_json()


def test_text_keeps_its_digits_and_its_letters():
    numbers = (
        '{\n  "a": 0.30000000000000004441,\n  "b": "é\\u0001",\n  "c": [],\n  "d": {},\n  "e": -2.5e+20\n}\n'
    )
    assert json_text.dump(json_text.parse(numbers, "x")) == numbers
    commented = '{"url": "http://x/*y*/", /* c */ "n": 1} // "end"'
    assert json_text.parse(commented, "x") == {"url": "http://x/*y*/", "n": 1}


def test_saving_replaces_files_and_nothing_else(cluster, scratch):
    Path("real.json").write_text("old")
    os.symlink("real.json", "link.json")
    cluster.save("link.json")
    assert os.path.islink("link.json") and Path("real.json").read_text() == cluster.to_json()
    cluster.save(os.devnull)
    assert not os.path.isfile(os.devnull)
    Path("folder").mkdir()
    for path in ("folder", "nowhere/cluster.json"):
        with pytest.raises(sp.InputError, match=f"^{path}: cannot be written"):
            cluster.save(path)
    assert sorted(os.listdir()) == ["folder", "link.json", "real.json"]


def test_all_answers_are_documents(plan, profile, cluster, scratch):
    answers = [
        sp.check(plan),
        sp.check(plan, transport="nccl"),
        sp.simulate(plan, jitter=20, stage_spread=0.1),
        sp.simulate(sp.plan(profile, cluster, micro_batch_size=4, widths=(2, 2))),
        sp.compare(plan, schedules="1f1b,zb_v,pipedream"),
        sp.compare(profile, cluster, schedules=["1f1b", "zb_h1"], jitter=20, **STRAIGHT),
        sp.compare(profile, cluster, schedules="1f1b", **STRAIGHT),
        sp.explain(plan),
    ]
    for answer in answers:
        answer.save("answer.json")
        loaded = type(answer).load("answer.json")
        assert loaded == answer and loaded.to_json() == answer.to_json()
        assert "<table>" in (loaded._repr_html_() or "") and repr(answer).startswith(
            f"<{type(answer).__name__}"
        )
        assert pickle.loads(pickle.dumps(answer)) == copy.deepcopy(answer) == answer
        assert str(pickle.loads(pickle.dumps(answer))) == str(answer)
    with pytest.raises(sp.InputError, match="was loaded, and what it is of is not in it"):
        sp.Simulation.from_json(answers[2].to_json()).svg()


# The functions are the verbs.


def test_a_plan_is_what_the_command_plans(files, plan, profile, cluster):
    command("plan", *files, *AS_OPTIONS, "-o", "theirs.json")
    assert plan.to_json() == Path("theirs.json").read_text()
    ours = sp.plan(nameless(profile), nameless(cluster), **STRAIGHT)
    assert command("plan", *files, *AS_OPTIONS).startswith(str(ours) + "\nnot written")
    theirs = json.loads(command("plan", *files, *AS_OPTIONS, "--json"))
    assert plan.search.bound_by == theirs["bound_by"] and plan.search.proof.optimal
    assert [other.stages for other in plan.search.others] == [other["stages"] for other in theirs["others"]]
    assert (plan.cuts, plan.widths, plan.ranks) == ((3, 5, 7), (1, 1, 1, 1), 4)
    assert plan.step_ms == theirs["plan"]["predicted"]["step_ms"]
    assert plan.samples_per_second == pytest.approx(32 / plan.step_ms * 1e3)


def test_schedules_and_searches_are_there(profile, cluster):
    found = sp.plan(profile, cluster, schedule="auto", micro_batches=4, stages=2, **STRAIGHT)
    assert found.program.micro_batches == 4 and found.search.search.from_schedule
    assert sp.plan(profile, cluster, schedule="1f1b:warmup_extra=1", **STRAIGHT).schedule.warmup_extra == 1


def test_a_graph_of_pipedream_is_a_profile_too(cluster):
    graph = SOURCE / "test/data/pipedream/alexnet.graph.txt"
    with pytest.warns(sp.Note, match="does not say how many samples"):
        planned = sp.plan(graph, cluster, stages=2, replicate=False)
    assert planned.model == "alexnet.graph.txt" and "nodes" in str(planned)


def test_explanations_are_the_commands(files, profile, cluster):
    ours = sp.plan(nameless(profile), nameless(cluster), **STRAIGHT)
    for explained in (sp.explain(ours), sp.explain(nameless(profile), nameless(cluster), **STRAIGHT)):
        assert command("explain", *files, *AS_OPTIONS).startswith(str(explained) + "\nnot written")
        theirs = json.loads(command("explain", *files, *AS_OPTIONS, "--json"))
        assert json.loads(explained.to_json()) == theirs["explanation"]
        assert explained.plan == ours and len(explained.cuts) == 3


def test_comparisons_are_the_commands(files, profile, cluster, plan):
    names = ["--schedules", "1f1b,zb_h1", "--svg", "front.svg"]
    ours = sp.compare(nameless(profile), nameless(cluster), schedules=["1f1b", "zb_h1"], **STRAIGHT)
    assert command("compare", *files, *AS_OPTIONS, *names).startswith(str(ours) + "\nPicture")
    assert ours.svg() == Path("front.svg").read_text()
    assert ours.to_json() == command("compare", *files, *AS_OPTIONS, *names, "--json")
    assert ours["zb_h1"].plan == ours.plan and ours.choices[1].schedule == "1f1b"
    front = sp.compare(profile, cluster, schedules="1f1b", pareto=True, **STRAIGHT)
    assert len(front.choices) > 2 and front.cap_step > 0
    under = sp.compare(nameless(plan), schedules="1f1b,zb_v,2bw", micro_batches=16)
    assert str(under) == command(
        "compare", "plan.json", "--schedules", "1f1b,zb_v,2bw", "--micro-batches", 16
    )
    assert under["zb_v"].refused and under["2bw"].steady and under["1f1b"].fits
    assert under.svg().startswith("<svg")


def test_proofs_and_simulations_are_the_commands(files, plan):
    plan = nameless(plan)
    proof, simulated = sp.check(plan, transport="nccl"), sp.simulate(plan, steps=2, micro_batches=4)
    assert proof and str(proof) == command("check", "plan.json", "--transport", "nccl")
    assert proof.to_json() == command("check", "plan.json", "--transport", "nccl", "--json")
    options = ["plan.json", "--steps", 2, "--micro-batches", 4]
    assert str(simulated) == command("simulate", *options, "--no-text")
    assert simulated.to_json() == command("simulate", *options, "--json")
    command("simulate", *options, "--svg", "p.svg", "--trace", "t.json", "--no-text")
    assert simulated.svg() == simulated._repr_svg_() == Path("p.svg").read_text()
    assert simulated.trace() == Path("t.json").read_text()
    assert sp.simulate("plan.json") == sp.simulate(plan)
    assert "from 10.00 ms to 20.00 ms" in sp.simulate(plan, from_=10, to=20).svg()


def test_programs_in_each_form(files, plan):
    program = nameless(plan).to_program()
    text, csv = command("convert", "plan.json"), command("convert", "plan.json", "--to", "csv")
    assert str(program) == program.to_text() == text and program.to_csv() == csv
    assert program.to_json() == command("convert", "plan.json", "--to", "json")
    assert program.ranks[0][0] == sp.Action(op="load", stage=0, micro_batch=0, group=0)
    Path("schedule.txt").write_text(text)
    Path("schedule.csv").write_text(csv)
    assert sp.Program.load("schedule.txt") == sp.Program.from_json(program.to_json()) == program
    assert sp.Program.load("schedule.csv").stages == ((0,), (1,), (2,), (3,))
    assert sp.check("schedule.csv").accepted and sp.check("schedule.txt").accepted
    assert program._repr_svg_().startswith("<svg") and "rank 3|" in program.draw()
    assert sp.simulate(program, unit_costs=True).makespan_ms == pytest.approx(33)


def test_a_schedule_is_repaired_or_refused():
    broken = sp.Program.from_text(BROKEN)
    with pytest.raises(sp.RefusedError, match="needs the load of its data") as refused:
        sp.check(broken)
    assert not refused.value.proof and refused.value.proof.findings[0].kind == "completeness"
    repaired = sp.repair(broken)
    assert repaired.changes and repaired.proof and sp.check(repaired.program)
    with pytest.raises(sp.RefusedError, match="rank"):
        sp.check(sp.Program.from_text(DEADLOCK))


def test_the_guide_says_what_runs(files):
    page = (SOURCE / "docs/guides/python_planning.md").read_text()
    names = {"text": Path("plan.json").read_text()}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    readme = (SOURCE / "python/planner_wheel/README.md").read_text()
    with contextlib.redirect_stdout(io.StringIO()):
        for block in [*blocks, *re.findall(r"```python\n(.*?)```", readme, re.DOTALL)]:
            exec(block, names)
    assert len(blocks) == 3 and names["program"].ranks and names["cluster"].devices == 16
    assert sp.Plan.load("plan.json").step_ms > 0


# Keywords that are files, or the other forms of output, which objects have instead.
OUTPUTS = {"output", "json", "svg", "trace", "text", "no_text", "repair", "help", "set"}


@pytest.mark.parametrize("verb", [sp.plan, sp.compare, sp.explain, sp.check, sp.simulate])
def test_keywords_are_the_options(verb):
    words = re.findall(r"^  (?:-\w,)?--([\w-]+)", command(verb.__name__, "--help"), re.MULTILINE)
    parameters = {name.rstrip("_") for name in inspect.signature(verb).parameters}
    asked = {word.replace("-", "_") for word in words} - OUTPUTS - {"no_replicate"}  # replicate=False
    assert asked | ({"program"} & parameters) == parameters


@pytest.mark.parametrize("verb", [sp.plan, sp.compare, sp.explain, sp.check, sp.simulate, sp.repair])
def test_each_keyword_reaches_the_command(verb, monkeypatch, profile, cluster, plan):
    class Asked(Exception):
        pass

    def run(words):
        raise Asked(words)

    monkeypatch.setattr("stagecraft_planner.binary._run", run)
    inputs = [profile, cluster] if verb in (sp.plan, sp.compare, sp.explain) else [str(FOUR_STAGES)]
    names = [one.name for one in inspect.signature(verb).parameters.values() if one.kind is one.KEYWORD_ONLY]
    flags = {"pareto", "replicate", "unit_costs"}
    with pytest.raises(Asked) as asked:
        verb(*inputs, **{name: True if name in flags else 7 for name in names})
    words = {name: "--" + name.rstrip("_").replace("_", "-") for name in names}
    expected = {word if name in flags else f"{word}=7" for name, word in words.items()}
    assert expected <= set(asked.value.args[0])


def test_numbers_make_a_profile_and_a_cluster():
    layers = sp.Profile.of_layers(
        [1.0, 2.0, 2.0, 1.0],
        backward_ms=[2.0, 4.0, 4.0, 2.0],
        parameter_bytes=4_000_000,
        output_bytes=262_144,
        kept_bytes=1_000_000,
        micro_batch=2,
        optimizer_bytes_per_parameter_byte=2,
        model="mine",
    )
    assert layers.measurements[0].layers[3].output_bytes == 0 and layers.layers_at(2)[1].backward_ms == 4
    machines = sp.Cluster.of_machines(
        2,
        bytes_per_second=25e9,
        machines=2,
        network_bytes_per_second=3e9,
        memory_bytes=2**33,
        speed=[1, 1, 1, 0.5],
    )
    assert machines.devices == 4 and machines.levels[1].shared_by == "child"
    made = sp.plan(layers, machines, replicate=False)
    assert made.model == "mine" and made.capacity_bytes == 2**33 and sp.check(made)


def test_numbers_of_other_libraries_are_numbers(cluster):
    numpy = pytest.importorskip("numpy")
    layers = sp.Profile.of_layers(
        numpy.array([1.0, 2.0, 1.0]), parameter_bytes=numpy.int64(10**6), output_bytes=numpy.float32(4096)
    )
    again = sp.Profile.from_json(layers.to_json())
    assert again.layers_at(1)[1].parameter_bytes == 10**6 and again.layers_at(1)[0].output_bytes == 4096
    machine = cluster.with_memory(8e9)
    assert '"memory_bytes": 8000000000,' in machine.to_json()
    planned = sp.plan(layers, machine, stages=numpy.int64(2), cuts=numpy.array([1]), replicate=False)
    assert planned.cuts == (1,)


def test_remarks_are_warnings(profile, cluster):
    with pytest.warns(sp.Note, match="leaves no time to search"):
        sp.plan(profile, cluster, time_limit=0, **STRAIGHT)


def test_names_are_text_in_html(profile, cluster):
    odd = dataclasses.replace(profile, model="<script>alert(1)</script>")
    for shown in (odd, sp.plan(odd, cluster, **STRAIGHT)):
        assert "<script>" not in shown._repr_html_() and "&lt;script&gt;" in shown._repr_html_()


# What is wrong, and what is said of it; p is the profile, c the cluster, four a plan that was loaded.
WRONG = {
    "sp.plan(p, c, stage=2)": (TypeError, 'plan() takes no "stage"; did you mean "stages"?'),
    "sp.plan(p, c)": (sp.InputError, "choose --micro-batch-size 4 or 8"),
    "sp.plan(p, c, stages=40, micro_batch_size=4)": (sp.InputError, "40 stages, but the model has"),
    "sp.plan(p, c, virtual_stages=0)": (sp.InputError, "--virtual-stages: expected 1 to 1024, found 0"),
    "sp.plan(p, c, schedule='zb_h3')": (sp.InputError, "zb_h3"),
    "sp.plan(p, c, cuts=[])": (sp.InputError, "cuts: is empty"),
    "sp.plan(p, c, replicate=2)": (sp.InputError, "replicate: expected True or False, found 2"),
    "sp.plan(p, c, stages=True)": (sp.InputError, "stages: expected"),
    "sp.plan(3, c)": (sp.InputError, "profile: expected a Profile or a path, found a int"),
    "sp.plan(c, p)": (sp.InputError, "profile: expected a Profile or a path, found a Cluster"),
    "sp.plan('nowhere.json', c)": (sp.InputError, "nowhere.json: cannot be opened: No such file"),
    "sp.plan(p, c.with_memory(10**6), micro_batch_size=4)": (sp.RefusedError, "What would fit, each alone:"),
    "sp.plan(p, sp.Cluster.of_machines(4, bytes_per_second=25), micro_batch_size=4)": (
        sp.InputError,
        "cluster.json: /levels/0/link/bytes_per_second: found 25",
    ),
    "sp.plan(sp.Profile.of_layers([1.0, float('inf')]), c)": (sp.InputError, "JSON has finite numbers alone"),
    "c.with_memory(2.5).to_json()": (
        sp.InputError,
        "Cluster.memory_bytes: expected a whole number, found 2.5",
    ),
    "c.with_memory('80 GiB').to_json()": (sp.InputError, "Cluster.memory_bytes: expected a whole number"),
    "sp.Cluster(levels=[3]).to_json()": (sp.InputError, "Cluster.levels[0]: expected an object, found 3"),
    "sp.Plan.from_json(c.to_json())": (sp.InputError, "plan.json: is a cluster; expected a plan"),
    "sp.Profile.load(RUN)": (sp.InputError, "bench_gpt.json: is a run config; expected a profile"),
    "sp.explain(p)": (sp.InputError, "the cluster is missing"),
    "sp.explain(four)": (sp.InputError, "was not made by plan() here"),
    "sp.compare(four, stages=3)": (sp.InputError, "--stages: plans anew"),
    "sp.compare(four, c)": (sp.InputError, "a plan's stages stay"),
    "sp.simulate(sp.Program.from_text(BROKEN))": (sp.InputError, "has no costs to price it with"),
    "sp.check(p)": (sp.InputError, "expected a Plan, a Program or a path, found a Profile"),
    "sp.Program.from_text('stagecraft program 1\\nstaages 0 1\\n')": (sp.InputError, "schedule"),
    """sp.Plan.from_json('{"stages": [{"last_laye": 3}]}')""": (
        sp.InputError,
        'plan.json: /stages/0/last_laye: unknown key; did you mean "last_layer"?',
    ),
    """sp.Cluster.from_json('{"levels": [{"count": 2.5}]}')""": (
        sp.InputError,
        "cluster.json: /levels/0/count: expected a whole number, found 2.5",
    ),
    """sp.Cluster.from_json('{"levels": [{"count": 2}]}')""": (
        sp.InputError,
        'cluster.json: /levels/0: "link" is missing',
    ),
    """sp.Cluster.from_json('{"name": "", "name": ""}')""": (
        sp.InputError,
        'cluster.json: /name: the key "name" appears twice in one object',
    ),
    """sp.Cluster.from_json('{"levels": [{"link": {"latency_ms": 1e999}}]}')""": (
        sp.InputError,
        "cluster.json: /levels/0/link/latency_ms: expected a number below 1.8e308, found 1e999",
    ),
    """sp.Cluster.from_json('{"levels": [{"a": 1, "a": 2}], "levels": []}')""": (
        sp.InputError,
        'cluster.json: /levels: the key "levels" appears twice in one object',
    ),
    "sp.Profile.from_json('{')": (sp.InputError, "not valid JSON: line 1, column 2: found the end"),
    """sp.Profile.from_json('{"a": nul}')""": (sp.InputError, 'column 7: found "nul"; expected a value'),
    "sp.Profile.of_layers([1.0, 2.0], parameter_bytes=[1])": (sp.InputError, "parameter_bytes: expected one"),
    "sp.Profile.of_layers([1.0], backward_ms=1, backward_input_ms=1)": (sp.InputError, "of both halves"),
}


@pytest.mark.parametrize("ask", WRONG)
def test_wrong_inputs(ask, profile, cluster):
    kind, text = WRONG[ask]
    with pytest.raises(kind) as refused:
        eval(ask, {**globals(), "p": profile, "c": cluster, "four": sp.Plan.load(FOUR_STAGES)})
    assert text in str(refused.value) and "stagecraft:" not in str(refused.value)
    # nor its own folder for the files in between
    assert f"{tempfile.gettempdir()}/stagecraft-" not in str(refused.value)
    assert "See `" not in str(refused.value)


@pytest.mark.parametrize(
    ("size", "rank"),
    [
        ("WORLD_SIZE", "RANK"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("SLURM_NTASKS", "SLURM_PROCID"),
    ],
)
@pytest.mark.parametrize("place", ["0", "1"])
def test_each_process_of_a_launcher_may_ask(size, rank, place, monkeypatch, profile, cluster, plan, tmp_path):
    monkeypatch.setenv(size, "2")
    monkeypatch.setenv(rank, place)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert sp.plan(profile, cluster, **STRAIGHT).to_json() == plan.to_json()
    assert sp.check(plan).accepted
    with pytest.raises(sp.InputError, match="99 stages, but the model has"):
        sp.plan(profile, cluster, **STRAIGHT | {"stages": 99})
    assert not (tmp_path / "error.json").exists()  # what a process is asked is not how it ends


def test_a_missing_planner_is_one_clear_line(monkeypatch, profile, cluster, tmp_path):
    monkeypatch.setenv("STAGECRAFT_PLANNER", str(tmp_path / "none"))
    with pytest.raises(sp.InternalError, match=r"none: there is no program to start: set it to") as missing:
        sp.plan(profile, cluster)
    assert "\n" not in str(missing.value)
    (tmp_path / "none").write_text("#!/nowhere/interpreter\n")
    (tmp_path / "none").chmod(0o755)
    with pytest.raises(sp.InternalError, match="none: cannot be started: No such file"):
        sp.plan(profile, cluster)
    (tmp_path / "none").write_text("#!/bin/sh\nkill -SEGV $$\n")
    with pytest.raises(sp.InternalError, match="the planner was ended by signal 11"):
        sp.plan(profile, cluster)
    monkeypatch.delenv("STAGECRAFT_PLANNER")
    monkeypatch.setattr("stagecraft_planner.binary._BESIDE", "/nowhere/bin/stagecraft")
    with pytest.raises(sp.InternalError, match="there is no planner to start: install the package with pip"):
        sp.check(FOUR_STAGES)


LONG = f"""
import stagecraft_planner as sp
print("begins", flush=True)
sp.plan(
    "{PROFILE}", "{CLUSTER}", schedule="auto", virtual_stages=2, time_limit=500, micro_batches=64,
    micro_batch_size=4,
)
"""


@pytest.mark.parametrize("seconds", [0, 0.2])  # as it starts, and when it works
def test_ctrl_c_ends_the_planner_too(tmp_path, seconds):
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    python = subprocess.Popen(
        [sys.executable, "-c", LONG],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{python.pid}/task/{python.pid}/children")
    until = time.monotonic() + 30
    while not children.read_text().split() and time.monotonic() < until:
        time.sleep(0.02)
    (planner,) = map(int, children.read_text().split())
    time.sleep(seconds)
    python.send_signal(signal.SIGINT)  # to Python alone, as a notebook sends it
    _, error = python.communicate(timeout=30)
    assert error.rstrip().endswith("KeyboardInterrupt") and "Traceback" in error
    assert not os.path.exists(f"/proc/{planner}") and os.listdir(tmp_path) == []


def test_several_at_once_do_not_disturb_each_other(profile, cluster):
    found = {}

    def work(stages):
        found[stages] = sp.plan(profile, cluster, stages=stages, **STRAIGHT)

    threads = [threading.Thread(target=work, args=(stages,)) for stages in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {stages: len(made.stages) for stages, made in found.items()} == {1: 1, 2: 2, 3: 3, 4: 4}


def test_it_needs_the_standard_library_alone():
    code = (
        "import sys, stagecraft_planner as sp; names = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(names - sys.stdlib_module_names - {'__main__', 'stagecraft_planner'}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    version = subprocess.run(
        [sys.executable, "-m", "stagecraft_planner", "--version"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert version.stdout == f"stagecraft {sp.__version__}\n"
    wheel = (SOURCE / "python/planner_wheel/pyproject.toml").read_text()
    assert f'\nversion = "{sp.__version__}"\n' in wheel
