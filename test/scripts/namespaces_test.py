"""Runs over hosts that are network namespaces (scripts/campaign.sh namespaces), a few of its kinds of
trouble. Skipped, with the reason, where namespaces are not allowed."""

import subprocess

import pytest

from places import BUILD, ENVIRONMENT, SOURCE

NETNS = SOURCE / "scripts/bench/netns.sh"


def test_a_cable_that_is_pulled_and_a_host_that_is_killed_cost_no_bits():
    done = subprocess.run(
        [SOURCE / "scripts/campaign.sh", "namespaces", "--trials", "2", "--seed", "0", "--build", BUILD],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split("  ")[0] for line in done.stdout.splitlines()}
    assert {"cable 1 s", "host killed", "all"} <= rows


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["5", "0", "-s", "2", "true"], "5 ranks do not fill hosts of 2"),
        (["4", "0", "-s", "none", "true"], "-s is a number of ranks per host, not 'none'"),
        (["4", "fast", "true"], "MBIT is a whole number of megabits per second, not 'fast'"),
    ],
)
def test_hosts_that_cannot_be_are_refused(words, why):
    done = subprocess.run([NETNS, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"netns.sh: {why}\n"
