"""torchrun's agent on this machine, with ranks that are forks of it, not new Pythons: a start takes
milliseconds, not the seconds of `import torch`. Run by a Python that has torch:

  python -m campaigns.agent FOLDER_OF_THE_MODULE RANKS RESTARTS LOGS stagecraft's words...
"""

from __future__ import annotations

import os
import signal
import sys
import time


def rank(words: list[str]) -> None:
    """One rank's life."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # the agent's handlers came with the fork
        signal.signal(number, signal.SIG_DFL)
    # Until the others are there: a connection makes the agent's store look up a name, and a fork meanwhile
    # leaves its child a lock that nobody opens.
    time.sleep(0.3)
    from stagecraft.__main__ import main

    sys.argv = ["stagecraft", *words]
    code = main()
    if code != 0:
        os._exit(code)


def agent(module: str, ranks: int, restarts: int, logs: str, words: list[str]) -> None:
    import torch
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    sys.path.insert(0, module)
    from stagecraft.engine import _engine  # noqa: F401 - once, before the forks

    torch.set_num_threads(1)
    config = LaunchConfig(
        1,
        1,
        ranks,
        run_id="job",
        rdzv_backend="c10d",
        # Numbers, not names: who forks while a thread looks up a name leaves its child a lock for ever.
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        start_method="fork",
        max_restarts=restarts,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(logs),
    )
    elastic_launch(config, rank)(words)


if __name__ == "__main__":
    agent(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
