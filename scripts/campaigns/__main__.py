"""scripts/campaign.sh says how it is called."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from . import hostile, kills, namespaces, oom, pauses, simulation, soak, wakes
from .trial import Tally, Wrong

CAMPAIGNS = {
    "kills": kills,
    "pauses": pauses,
    "wakes": wakes,
    "namespaces": namespaces,
    "soak": soak,
    "oom": oom,
    "hostile": hostile,
    "simulation": simulation,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/campaign.sh", description=__doc__)
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--minutes", type=float, default=5.0, help="no trial begins after that (default: 5)")
    parser.add_argument("--trials", type=int, default=sys.maxsize, help="at most so many")
    parser.add_argument(
        "--seed",
        type=int,
        help="of the first trial; the next has N + 1 (default: the time; oom, simulation: 0)",
    )
    parser.add_argument(
        "--build", type=Path, default=Path(__file__).parents[2] / "build", help="folder with stagecraft"
    )
    options = parser.parse_args()
    module = CAMPAIGNS[options.campaign]
    first = options.seed
    if first is None:
        first = getattr(module, "FIRST_SEED", int(time.time()))
    command = (options.build / "stagecraft").absolute()
    if not command.exists():
        parser.error(f"{command} is not there: build it, or name the folder with --build")
    until = time.monotonic() + 60 * options.minutes
    tally = Tally(options.campaign)
    with tempfile.TemporaryDirectory(prefix="stagecraft-campaign-") as folder:
        make = module.Campaign(Path(folder), str(command), until)
        for seed in range(first, first + options.trials):
            if time.monotonic() > until:
                break
            try:
                tally.add(make.trial(seed))
            except Wrong as wrong:
                again = f"scripts/campaign.sh {options.campaign} --seed {seed} --trials 1"
                print(f"{tally.table()}\n\nWRONG: {wrong}\nAgain: {again}")
                return 1
    print(tally.table())
    return 0


sys.exit(main())
