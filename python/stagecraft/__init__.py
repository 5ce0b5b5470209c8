"""Pipeline-parallel training of PyTorch modules.

import stagecraft as sc
step = sc.pipeline(model, batch, loss=loss_fn, optimizer=sc.AdamW(lr=1e-3), stages=2, micro_batches=8)
for batch in loader:
    print(step(batch).loss)
model.load_state_dict(step.state_dict())
"""

from stagecraft_planner import Cluster, Plan, Profile, check, compare, explain, plan, simulate

from .errors import (
    CaptureError,
    InputError,
    InternalError,
    NotFiniteError,
    PeerError,
    RefusedError,
    StagecraftError,
)
from .loading import load
from .optimizers import SGD, Adafactor, Adam, AdamW, Lion, NAdam, Optimizer
from .pipeline import Pipeline, pipeline
from .profiling import profile
from .steps import RankTime, Step

__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "CaptureError",
    "Cluster",
    "InputError",
    "InternalError",
    "Lion",
    "NAdam",
    "NotFiniteError",
    "Optimizer",
    "PeerError",
    "Pipeline",
    "Plan",
    "Profile",
    "RankTime",
    "RefusedError",
    "StagecraftError",
    "Step",
    "check",
    "compare",
    "explain",
    "load",
    "pipeline",
    "plan",
    "profile",
    "simulate",
]
