"""Run directories that earlier programs wrote (test/data/runs) are reported, exported and resumed: with the
bits they had, where LibTorch and the processor are those they were made with. Others are refused."""

import json

import pytest

import kept_runs
from kept_runs import KEPT, stagecraft

GENERATIONS = sorted(path.name for path in KEPT.glob("format_*"))
EVERY = [
    (generation, path.name.removesuffix(".tar.gz"))
    for generation in GENERATIONS
    for path in sorted((KEPT / generation).glob("*.tar.gz"))
]
READS = "format_2"  # what this program writes, and reads
# Of losses within some ten steps, where sums may be added in another order. Mixed precision rounds more.
CLOSE = {"bf16": 0.05, "fp16_scaled": 0.05}
CLOSE_FLOAT32 = 1e-3


def kept(generation, name, folder):
    """The run directory, in `folder`, with what its config needs; the facts beside it."""
    kept_runs.prepare(name, folder)
    kept_runs.unpack(KEPT / generation / f"{name}.tar.gz", folder)
    return json.loads((KEPT / generation / f"{name}.json").read_text())


def files(folder):
    """But for what a session that is refused leaves or takes away before it has read anything."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "exit.json") and "fresh" not in path.parts
    }


def test_each_kind_of_run_is_kept_in_the_format_that_is_written():
    assert [name for generation, name in EVERY if generation == READS] == sorted(kept_runs.RUNS), (
        "see test/data/runs/README.md"
    )
    assert sum(path.stat().st_size for path in KEPT.rglob("*")) < 1 << 20


def test_what_is_written_now_has_that_format(scratch):
    kept_runs.prepare("float64", scratch)
    stagecraft(scratch, "train", "run.json")
    manifest = json.loads((kept_runs.newest_checkpoint(scratch / "run") / "manifest.json").read_text())
    assert f"format_{manifest['format']}" == READS, "see test/data/runs/README.md"


@pytest.mark.parametrize(("generation", "name"), [run for run in EVERY if run[0] == READS])
def test_it_is_read_exported_and_resumed(generation, name, scratch):
    facts = kept(generation, name, scratch)
    assert "Step" in stagecraft(scratch, "report", "run")
    assert kept_runs.exported(scratch) == facts["exported"]
    stagecraft(scratch, "train", "run.json", "--resume")
    losses = kept_runs.losses(scratch / "run", facts["step"])
    if (kept_runs.torch_version(), kept_runs.processor()) == (facts["torch"], facts["processor"]):
        assert losses == facts["losses"]
        assert kept_runs.state(scratch / "run") == facts["state"]
    else:
        assert [record[:2] for record in losses] == [record[:2] for record in facts["losses"]]
        expected = [record[2] for record in facts["losses"]]
        assert [record[2] for record in losses] == pytest.approx(expected, rel=CLOSE.get(name, CLOSE_FLOAT32))
        assert kept_runs.state(scratch / "run").keys() == facts["state"].keys()


def test_those_of_formats_that_are_read_no_more_are_refused_with_a_line(tmp_path):
    for generation, name in EVERY:
        if generation == READS:
            continue
        folder = tmp_path / generation / name
        folder.mkdir(parents=True)
        kept(generation, name, folder)
        said = stagecraft(folder, "train", "run.json", "--resume", code=2)
        assert "/format: " in said and "of an older Stagecraft" in said
        assert said.count("\n") == 1


NEWER = "3, of a newer Stagecraft; this one reads checkpoints of format 2"
# What a newer or older program may have written, and what is said of it.
OTHERS = {
    "newer": (lambda m: m | {"format": 3}, NEWER),
    "newer, with a key more": (lambda m: m | {"format": 3, "shards": 4}, NEWER),
    "newer, with a key that is nearly one of ours": (lambda m: m | {"format": 3, "stepss": 4}, NEWER),
    "newer, with another type": (lambda m: m | {"format": 3, "step": {"of": 4}}, NEWER),
    "newer, without most": (lambda m: {"format": 3, "run": m["run"]}, NEWER),
    "older": (
        lambda m: m | {"format": 1},
        "1, of an older Stagecraft; this one reads checkpoints of format 2",
    ),
    "none": (lambda m: {k: v for k, v in m.items() if k != "format"}, 'the key "format" is missing'),
    "no number": (lambda m: m | {"format": "2"}, 'found "2"'),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_format_is_refused_and_nothing_changes(other, scratch):
    kept(READS, "synchronous", scratch)
    path = kept_runs.newest_checkpoint(scratch / "run") / "manifest.json"
    change, expected = OTHERS[other]
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    before = files(scratch)
    readers = [("train", "run.json", "--resume")]
    if other == "newer":
        fresh = ("--set", "run_dir=fresh", "--set", f"initial_checkpoint={path.parent}")
        readers += [("export", "run", "-o", "exported"), ("train", "run.json", *fresh)]
    for words in readers:
        said = stagecraft(scratch, *words, code=2)
        assert f"{path.relative_to(scratch)}" in said and expected in said, said
        assert said.count("\n") == 1
    assert files(scratch) == before


def test_a_number_that_is_not_the_one_it_was_made_with_is_noticed(scratch):
    """The comparison itself: a run that goes on otherwise is told from one that does not."""
    facts = kept(READS, "synchronous", scratch)
    stagecraft(scratch, "train", "run.json", "--resume", "--set", "seed=4", "--allow", "seed")
    assert kept_runs.losses(scratch / "run", facts["step"]) != facts["losses"]
