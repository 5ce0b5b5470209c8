"""scripts/campaign.sh, each campaign for a few seconds: it ends well, and says so of a run that is wrong."""

import subprocess

import pytest

from places import BUILD, ENVIRONMENT, FULL, SOURCE


def campaign(*words, build=BUILD):
    return subprocess.run(
        [SOURCE / "scripts/campaign.sh", *words, "--build", build],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


TRIALS = "2" if FULL else "1"


@pytest.mark.parametrize("name", ["kills", "pauses", "wakes"])
def test_a_run_that_is_hurt_ends_as_one_left_alone(name):
    done = campaign(name, "--trials", TRIALS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0].startswith(f"{name}: ")
    assert done.stdout.splitlines()[-1].startswith("all ")


def test_a_run_that_goes_on_for_long_holds_what_it_held():
    done = campaign("soak", "--trials", "1", "--minutes", "0.5" if FULL else "0.3")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_with_other_bits_is_named_with_the_command_that_repeats_it(tmp_path):
    """A stagecraft that loses the last line of runs that were hurt."""
    stagecraft = tmp_path / "stagecraft"
    stagecraft.write_text(
        f'#!/bin/bash\n{BUILD}/stagecraft "$@"; code=$?; run=$(dirname "$2")/run\n'
        'if [[ $run == */hurt/run && $code == 0 ]]; then sed -i "$ d" "$run/metrics.jsonl"; fi\n'
        "exit $code\n"
    )
    stagecraft.chmod(0o755)
    done = campaign("kills", "--trials", "1", "--seed", "3", build=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " steps instead of 40" in done.stdout
    assert "Again: scripts/campaign.sh kills --seed 3 --trials 1" in done.stdout


FAULTS = (BUILD / "test/faults/libfailing_memory.so").exists()  # not with sanitizers


@pytest.mark.skipif(not FAULTS, reason="sanitizers have a malloc of their own")
@pytest.mark.parametrize(("name", "trials"), [("oom", 12 if FULL else 6), ("hostile", 12 if FULL else 6)])
def test_requests_that_fail_and_files_that_are_changed_end_in_order(name, trials):
    done = campaign(name, "--trials", str(trials), "--seed", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("all ")


@pytest.mark.skipif(not FAULTS, reason="sanitizers have a malloc of their own")
def test_an_end_without_a_word_of_memory_is_wrong(tmp_path, monkeypatch):
    """What is not expected is told, with the place of the request that failed."""
    from campaigns import oom
    from campaigns.trial import Wrong

    monkeypatch.setattr(oom, "WORDS", ("no such word",))
    trying = oom.Campaign(tmp_path, str(BUILD / "stagecraft"), 0)
    with pytest.raises(Wrong, match=r"(?s)request \d+ fails, and it says .*libfailing_memory"):
        trying.trial(0)


SIMULATE = BUILD / "test/simulation/simulate"  # not with sanitizers


@pytest.mark.skipif(not SIMULATE.exists(), reason="sanitizers replace the same functions")
def test_runs_and_pipelines_under_one_seed_end_in_order():
    done = campaign("simulation", "--trials", "40" if FULL else "20")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("all ")


@pytest.mark.skipif(not SIMULATE.exists(), reason="sanitizers replace the same functions")
def test_a_disk_that_forgets_what_was_synced_is_found_out():
    seeds = "".join(f"{seed}\n" for seed in range(0, 80, 2 if FULL else 4))
    done = subprocess.run(
        [SIMULATE, "--forgetful"], input=seeds, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "wrong" in done.stdout


def test_what_cannot_be_run_is_refused(tmp_path):
    assert campaign("floods").returncode == 2
    assert "build it" in campaign("kills", build=tmp_path).stderr
