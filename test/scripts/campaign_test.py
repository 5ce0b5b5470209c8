"""scripts/campaign.sh, each campaign for a few seconds: it ends well, and says so of a run that is wrong."""

import subprocess

import pytest

from places import BUILD, ENVIRONMENT, SOURCE


def campaign(*words, build=BUILD):
    return subprocess.run(
        [SOURCE / "scripts/campaign.sh", *words, "--build", build],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["kills", "pauses"])
def test_a_run_that_is_hurt_ends_as_one_left_alone(name):
    done = campaign(name, "--trials", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0].startswith(f"{name}: ")
    assert done.stdout.splitlines()[-1].startswith("all ")


def test_a_run_that_goes_on_for_long_holds_what_it_held():
    done = campaign("soak", "--trials", "1", "--minutes", "0.5")
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


def test_what_cannot_be_run_is_refused(tmp_path):
    assert campaign("floods").returncode == 2
    assert "build it" in campaign("kills", build=tmp_path).stderr
