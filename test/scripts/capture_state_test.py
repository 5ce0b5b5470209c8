#!/usr/bin/env python3
"""Captures small modules with state of every kind (capture_state_cases.py): each equals eager over two forwards in training, with all that they
changed, or is refused with its own words. Prints the table of outcomes.

    capture_state_test.py SOURCE_DIR STAGECRAFT [NAME...]          exits with 77 where torch is missing; NAME: of cases alone
"""

import sys
import traceback

import uncollected  # noqa: F401: before PyTorch

from capture_cases import CaptureError, capture, check, numbers, torch
from capture_state_cases import CASES

def outcome(case):
    """What the capture says of the module, and whether that is as expected."""
    module, batch = case.build(), numbers(8, name="h" if case.alone else "input")
    before = {name: t.clone() for name, t in module.state_dict().items()}
    try:
        model = capture(module, batch)
        checked = check(module, model, batch.at(4))
    except CaptureError as error:
        return f"refused: {error}", bool(case.words) and all(word in str(error) for word in case.words)
    except Exception:
        traceback.print_exc()
        return "failed", False
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items()), f"{case.name}: the module is not as it was"
    parts = {part: checked[part] == "equal" for part in ("output", "evaluation")}
    parts |= {"gradients": checked["equal"] == checked["gradients"] > 0, "buffers": checked["buffers"] == checked["buffers_equal"]}
    differs = [part for part, equal in parts.items() if not equal]
    left_out = sorted(path.removeprefix("1.") for path in model.changes.left_out)
    said = f"{' and '.join(differs)} differ" if differs else "equal"
    said += f", {checked['buffers']} buffers" + (f", left out: {', '.join(left_out)}" if left_out else "")
    return said, not case.words and differs == ([case.differs] if case.differs else []) and left_out == sorted(case.left_out)


def main(names):
    wrong, chosen = [], [case for case in CASES if not names or any(name in case.name for name in names)]
    width = max(len(case.name) for case in chosen)
    for case in chosen:
        said, expected = outcome(case)
        print(f"{'  ' if expected else 'X '}{case.name:<{width}}  {said}", flush=True)
        wrong += [] if expected else [case.name]
    print(f"{len(chosen)} modules, {len(wrong)} not as expected{': ' if wrong else ''}{'; '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
