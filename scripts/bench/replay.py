"""The least time in which the actions of a recorded run could have been made, each as long as it took
there."""

import json

HALVES = ("backward", "backward_input")  # what the stage before waits for
MADE = ("forward", "recompute", "backward_weight", "reduce", "agree_norm", "step", *HALVES)


def compute_lists(timeline):
    """Of each rank, in the order they began: what computes, and where ranks meet."""
    events = [
        event
        for event in json.loads(timeline.read_text())["traceEvents"]
        if event.get("args", {}).get("op") in MADE
    ]
    ranks = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        ranks.setdefault(event["args"]["rank"], []).append(event)
    return list(ranks.values())


def needs(event, stages):
    """The action that one waits for, as made() names it."""
    args = event["args"]
    if args["op"] == "forward" and args["stage"] > 0:
        return "forward", args["stage"] - 1, args["step"], args["micro_batch"]
    if args["op"] in HALVES and args["stage"] + 1 < stages:
        return "backward", args["stage"] + 1, args["step"], args["micro_batch"]
    return None


def made(event):
    args = event["args"]
    return (
        "backward" if args["op"] in HALVES else args["op"],
        args.get("stage"),
        args["step"],
        args.get("micro_batch"),
    )


def replayed_ms(timeline):
    """(milliseconds with transfers that take no time and nothing between actions, recorded milliseconds): the
    makespan of the run's own durations in the run's own order. No stage has replicas."""
    lists = compute_lists(timeline)
    stages = 1 + max(event["args"].get("stage", 0) for actions in lists for event in actions)
    known = {made(event) for actions in lists for event in actions}
    ends, clocks, at = {}, [0.0] * len(lists), [0] * len(lists)
    while any(position < len(actions) for position, actions in zip(at, lists)):
        moved = False
        for rank, actions in enumerate(lists):
            while at[rank] < len(actions) and actions[at[rank]]["args"]["op"] != "agree_norm":
                event = actions[at[rank]]
                need = needs(event, stages)
                if need in known and need not in ends:
                    break
                clocks[rank] = max(clocks[rank], ends.get(need, 0.0)) + event["dur"] / 1e3
                ends[made(event)] = clocks[rank]
                at[rank] += 1
                moved = True
        if all(
            at[rank] < len(actions) and actions[at[rank]]["args"]["op"] == "agree_norm"
            for rank, actions in enumerate(lists)
        ):
            clocks, at, moved = [max(clocks)] * len(lists), [position + 1 for position in at], True
        if not moved:
            raise ValueError(f"{timeline}: its actions wait for each other")
    begin = min(event["ts"] for actions in lists for event in actions)
    end = max(event["ts"] + event["dur"] for actions in lists for event in actions)
    return max(clocks), (end - begin) / 1e3
