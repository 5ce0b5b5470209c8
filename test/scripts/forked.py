"""Parts of a test in forks of its process, which imported PyTorch once: a process of its own takes seconds
to.

Fork before the process itself runs a backward: autograd's threads do not come along.
"""

import os
import runpy
import subprocess
import sys
import tempfile
import traceback


def code_of(function):
    try:
        return function()
    except SystemExit as error:
        return error.code
    except BaseException:
        traceback.print_exc()
        return 1


def in_fork(function):
    """What `function` returns as an exit code, in a process of its own; None is 0, an exception 1."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = code_of(function)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def imported():
    """What captures import, once for all forks: seconds of each."""
    import stagecraft_capture.into_folder  # noqa: F401

    if "transformers" in sys.modules:
        import transformers.modeling_utils  # noqa: F401


def isolated(function, *arguments):
    """Calls the function where it leaves nothing behind."""
    imported()
    assert in_fork(lambda: function(*arguments)) == 0, "its exception stands above"


def captured(given, function):
    """`function` in a fork, with `given` as the command line that it reads: a CompletedProcess with its exit
    code and texts."""
    given = list(map(str, given))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:

        def work():
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            sys.argv = given
            return function()

        code = in_fork(work)
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(given, code, *texts)


# 1: also where a test does not ask for it.
ALWAYS_TRIED = os.environ.get("STAGECRAFT_TRIAL") == "1"


def stagecraft_capture(*arguments, trial=ALWAYS_TRIED):
    """As `python -m stagecraft_capture` with these arguments. `trial`: with a step of the engine, which takes
    seconds, and which what a test trains has no need of."""
    imported()
    from stagecraft_capture.command import command

    return captured(["stagecraft-capture", *arguments, *([] if trial else ["--no-trial"])], command)


def script(path, *arguments):
    """As `python PATH` with these arguments."""

    def run():
        runpy.run_path(path, run_name="__main__")

    return captured([path, *arguments], run)
