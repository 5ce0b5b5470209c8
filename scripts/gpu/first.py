"""See gpu_first.sh, which starts this one."""

import os
import shlex
import signal
import sys

import bundle
import options
from runner import ENDING, Runner, fill, say


def print_list(chosen, out):
    """Each command as it can be pasted; its run is not where the part's own goes."""
    for part in chosen:
        variables = [f"{name}={value}" for name, value in part.environment.items() if value is not None]
        unset = [
            word
            for name, value in part.environment.items()
            if value is None and name not in os.environ
            for word in ("-u", name)
        ]
        command = [
            *(["env", *unset, *variables] if unset or variables else []),
            *(fill(word, out / "by_hand") for word in part.command),
        ]
        say(
            f"{part.name:<24} {part.seconds:>4} s  {part.shows}\n   "
            f" {shlex.join([str(bundle.ROOT / 'gpu_first.sh'), '--env', *command])}"
        )


def become(command, environment):
    """Runs `command` in the place of this process."""
    os.chdir(bundle.ROOT)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        bundle.refuse(f"--env {command[0]}: {error.strerror}")


def main():
    for number in (signal.SIGTERM, signal.SIGINT):  # until the first part
        signal.signal(number, lambda number, _: os._exit(128 + number))
    sys.stdout.reconfigure(errors="backslashreplace")
    arguments = options.parse()
    chosen = options.choose(arguments) if arguments.env is None else []
    if arguments.list:
        print_list(chosen, arguments.out)
        return 0
    manifest = bundle.manifest()
    torch, version = bundle.torch_folder(manifest)
    environment = bundle.environment(torch)
    if arguments.env:
        become(arguments.env, environment)
    if arguments.hosts:
        bundle.reach(arguments.hosts.split(","))
    runner = Runner(arguments.out, arguments.seconds, environment, manifest)
    runner.keep_others(chosen)
    say(
        f"gpu_first: scripts of commit {manifest['commit']}, {manifest['build']}, torch {version} of {torch};"
        f" {len(chosen)} parts, {arguments.seconds:g} s of which {ENDING} are kept for the end; results go to"
        f" {runner.out}"
    )
    return runner.run_all(chosen)


if __name__ == "__main__":
    sys.exit(main())
