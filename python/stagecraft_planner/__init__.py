"""Plans, checks and simulates pipeline-parallel training: the planner of Stagecraft as a library.

    import stagecraft_planner as sp
    profile = sp.Profile.load("profile.json")
    cluster = sp.Cluster.load("cluster.json")
    plan = sp.plan(profile, cluster, micro_batches=16)
    print(plan)
    plan.save("plan.json")

Needs Python's standard library and one program, which it starts anew for each question: no torch, no
state, and Ctrl-C ends it. Objects do not change; each is a JSON file, too.
"""

from .cluster import Cluster, Level, Link
from .comparison import Choice, Compared, Comparison, ScheduleComparison
from .costs import CostTable, Network, StageCosts
from .errors import InputError, InternalError, Note, PeerError, RefusedError, StagecraftError
from .explanation import Explanation
from .plan import Plan, ScheduleChoice, Stage
from .profile import Layer, Measurement, Profile, Timing
from .program import Action, Program
from .proof import Proof, Repaired
from .simulation import Simulation
from .verbs import check, compare, explain, plan, repair, simulate

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Choice",
    "Cluster",
    "Compared",
    "Comparison",
    "CostTable",
    "Explanation",
    "InputError",
    "InternalError",
    "Layer",
    "Level",
    "Link",
    "Measurement",
    "Network",
    "Note",
    "PeerError",
    "Plan",
    "Profile",
    "Program",
    "Proof",
    "RefusedError",
    "Repaired",
    "ScheduleChoice",
    "ScheduleComparison",
    "Simulation",
    "Stage",
    "StageCosts",
    "StagecraftError",
    "Timing",
    "check",
    "compare",
    "explain",
    "plan",
    "repair",
    "simulate",
]
