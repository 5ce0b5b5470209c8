"""A pipeline of a module: captured, profiled, planned and proved when it is made, then stepped batch by
batch."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stagecraft_planner import Plan

from . import captured
from .errors import InputError
from .fields import Reader, is_micro_batches
from .launch import close_at_the_end, ranks_of_this_start
from .optimizers import Optimizer
from .prepared import Prepared, merged, prepared_of, rates_of
from .telling import phase

if TYPE_CHECKING:
    import torch

    from stagecraft_follow.step_log import StepLog

    Inputs: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]
    Batch: TypeAlias = tuple[Inputs, torch.Tensor] | Mapping[str, torch.Tensor]

ENDLESS = 1_000_000_000  # steps of a run whose length nobody says


@dataclass(frozen=True)
class RankTime:
    """Where a rank's time went in a step, in seconds. Together they are the step as this rank saw it."""

    rank: int
    compute: float  # forwards, backwards, updates
    wait: float  # for other stages
    collective: float  # sums over replicas and the gradient's norm
    other: float  # loading, bookkeeping


@dataclass(frozen=True)
class Step:
    """What became of a batch: of a step, or of an evaluation, which has no norm, no rate and no ranks.

    Every process of a run gets the same."""

    step: int  # of the whole training, from 0
    loss: float  # of the whole batch, each sample (or label that counts) weighing alike
    norm: float | None  # of the whole gradient, before clipping
    learning_rate: float  # of this step
    seconds: float  # from the call until all ranks are through it
    samples: int
    tokens: int  # samples times their length; 0 where the input is not tokens
    skipped: bool  # the gradient was not finite, and the weights are as before
    loss_scale: float | None  # of fp16
    ranks: tuple[RankTime, ...]
    terms: Mapping[str, float] = field(default_factory=dict)  # of the loss, weighted as it is; by name


class Pipeline:
    """Made by `pipeline()` or `load()`. One optimizer step per call.

    Used by one thread at a time. Several pipelines may step at once; under mpirun they take turns. Its
    ranks end, and its memory is freed, when it is dropped. Under torchrun and mpirun every process makes
    the same calls in the same order."""

    def __init__(
        self,
        config: dict[str, Any],
        reader: Reader,
        first: Mapping[str, torch.Tensor],
        folder: captured.ModelFolder,
        checkpoint: str = "",
        rates: Callable[[int], float] | None = None,
        aliases: Mapping[str, str] | None = None,
        others: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        from .engine import _engine

        self._reader, self._folder, self._rates = reader, folder, rates
        self._lr: float | None = None
        self._logs: list[StepLog] = []
        self._aliases, self._others = dict(aliases or {}), dict(others or {})
        self._ranks = ranks_of_this_start()
        try:
            with phase("measuring layers, planning and proving"):
                self._session = _engine.Session(
                    json.dumps(config),
                    dict(first),
                    checkpoint,
                    self._ranks.name,
                    self._ranks.machine_rank,
                    self._ranks.machine_world,
                )
        except BaseException:
            self._ranks.close()
            raise
        close_at_the_end(self)
        if not self._aliases:
            self._aliases = {name: name for name in self._session.state_names()}

    def __call__(self, batch: Batch | list[Batch]) -> Step:
        """One optimizer step, with the bits of the plain loop over the same micro-batches.

        batch: like the one that the pipeline was made for: the same names, types and sizes of a sample, on
            the CPU. Tensors are [samples, ...] with any number of samples: fewer make fewer micro-batches.
            Or a list of such batches, each of which is one micro-batch of any size up to the first's; their
            samples weigh as in one batch.

        Returns when all ranks are through the step. Threads of Python run meanwhile. Throws InputError for a
        batch that does not fit and NotFiniteError for a loss or a gradient that is no number: both leave
        everything as it was. Throws PeerError where another process died or hangs: the pipeline is lost.
        """
        fields, sizes = self._fields(batch)
        rate = self._lr if self._rates is None else float(self._rates(self.steps))
        made = _step_of(self._session.step(fields, sizes, rate))
        for log in self._logs:
            log.step(made)
        return made

    def evaluate(self, batch: Batch | list[Batch]) -> Step:
        """The loss of a batch in evaluation mode, without gradients. Changes nothing.

        batch: as for a step. Throws InputError for a batch that does not fit."""
        fields, sizes = self._fields(batch)
        made = _step_of(self._session.evaluate(fields, sizes))
        for log in self._logs:
            log.evaluation(made)
        return made

    def _fields(self, batch: Any) -> tuple[dict[str, torch.Tensor], list[int]]:
        if is_micro_batches(batch):
            return self._reader.joined(batch)
        return self._reader.fields(batch), []

    def close(self, why: str = "") -> None:
        """Ends the ranks and frees what they hold, at once. Later calls throw
        InputError. `why`: of several processes, the reason why the others must not wait for this one."""
        logs, self._logs = self._logs, []
        for log in logs:
            log.close()
        self._session.close(why)
        self._ranks.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.close("" if error is None else f"{type(error).__name__}: {error}")

    @property
    def steps(self) -> int:
        """Optimizer steps made so far, with those before a checkpoint."""
        return int(self._session.steps())

    @property
    def config(self) -> dict[str, Any]:
        """The run's config, as run.json has it, with all that was chosen. A copy."""
        found: dict[str, Any] = json.loads(self._session.config())
        return found

    @property
    def plan(self) -> Plan:
        """Stages, schedule and what was predicted; in a notebook a table."""
        return Plan.from_json(self._session.plan())

    @property
    def notes(self) -> list[str]:
        """What a person should know of the plan."""
        return list(self._session.notes())

    @property
    def capture_report(self) -> str:
        """The capture's table of layers; "" where the capture came from the cache."""
        return self._folder.said

    @property
    def is_first(self) -> bool:
        """Whether this process is the one to print: rank 0, or the only one."""
        return bool(self._session.is_first())

    @property
    def reads_data(self) -> bool:
        """Whether a stage of this process reads batches. Where none does, any batch of the right sizes will
        do."""
        return bool(self._session.reads_data())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the weights and buffers on the CPU, by the module's names, for its load_state_dict.

        Of several processes all must call it, and each gets the whole."""
        state = self._gathered(self._session.state())
        return {
            name: self._others[name] if name in self._others else state[held].clone()
            for name, held in (self._aliases | {name: name for name in self._others}).items()
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Sets weights and buffers. The optimizer's state stays as it is.

        state: all that `state_dict` has, of the same shapes; copied. Throws InputError for a missing one."""
        missing = [name for name in self._aliases if name not in state]
        if missing:
            raise InputError(f"the state has no {', '.join(missing[:3])}")
        self._session.set_state({held: state[name] for name, held in reversed(self._aliases.items())})

    def _compare_processes(self, config: Mapping[str, Any], module: torch.nn.Module) -> None:
        """Of several processes each has a module of its own, and holds stages of it: they must be equal."""
        if not self._session.is_process():
            return
        of_config = {k: v for k, v in config.items() if k != "model"}
        mine = {"arguments": json.dumps(of_config, sort_keys=True), "module's weights": _digest(module)}
        for rank, text in enumerate(self._session.gather(json.dumps(mine).encode())):
            theirs = json.loads(text)
            for what, value in mine.items():
                if theirs[what] != value:
                    raise InputError(
                        f"rank {rank} has other {what} than this rank: give all processes the same, with the"
                        " same seed (torch.manual_seed) or checkpoint before the module is made"
                    )

    def _gathered(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if not self._session.is_process():
            return state
        import io

        import torch

        mine = io.BytesIO()
        torch.save(state, mine)
        whole: dict[str, torch.Tensor] = {}
        for each in self._session.gather(mine.getvalue()):
            whole.update(torch.load(io.BytesIO(each), weights_only=True))
        return whole

    def set_lr(self, lr: float) -> None:
        """The learning rate of all steps to come, in place of the optimizer's and of a schedule.

        lr: 0 or more; else throws InputError."""
        if not lr >= 0:
            raise InputError(f"set_lr: expected a rate of 0 or more, found {lr!r}")
        self._lr, self._rates = float(lr), None

    def log_to(self, to: str, at: str = "", *, project: str = "stagecraft", name: str = "pipeline") -> None:
        """Sends each step and evaluation from now on to a tool, by its own client, once a second.

        to: "tensorboard", "wandb", "trackio", "mlflow", "prometheus" or "otlp", as `stagecraft follow` has
            them; by the same names, and each rank's time.
        at: tensorboard's folder, mlflow's tracking URI, prometheus' HOST:PORT, otlp's collector.
        project, name: the run's.

        Of several processes the first one sends. Throws InputError where the client is missing or refuses to
        begin; what it refuses later is a warning. It ends with `close()`."""
        if not self.is_first:
            return
        from stagecraft_follow.step_log import StepLog
        from stagecraft_tools.refusal import Refused

        plan = json.loads(self._session.plan())
        try:
            log = StepLog(to, os.fspath(at), project, name, self.config, plan, self.steps)
        except Refused as error:
            raise InputError(str(error)) from error
        self._logs.append(log)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes a checkpoint into the run directory `path`, as `stagecraft train` does, and returns its
        folder. Of several processes all must call it. `load(path)` goes on from it, and so does `stagecraft
        train --resume`. Throws InputError where it cannot be written: nothing of it is left, older ones
        stay, and the pipeline goes on."""
        root = os.path.abspath(os.fspath(path))
        folder = str(self._session.save(root))
        if self._session.is_first():
            self._keep_model(Path(root))
        return folder

    def _keep_model(self, root: Path) -> None:
        """A copy of the model folder beside the checkpoints, and a config that names it."""
        kept = root / "model"
        if not kept.exists():
            aside = tempfile.mkdtemp(prefix="model.", dir=root)
            shutil.copytree(self._folder.path, aside, dirs_exist_ok=True)
            os.rename(aside, kept)
        config = self.config
        config["model"]["path"], config["run_dir"] = str(kept), str(root)
        descriptor, name = tempfile.mkstemp(prefix="config.", dir=root)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, root / "config.json")

    def __repr__(self) -> str:
        plan = self.plan
        return (
            f"<stagecraft.Pipeline: {plan.schedule.name} of {len(plan.stages)} stages,"
            f" {self.steps} steps made>"
        )


def pipeline(
    module: torch.nn.Module,
    batch: Batch,
    *,
    loss: captured.Loss | str | None = None,
    optimizer: Optimizer | torch.optim.Optimizer | str = "AdamW",
    stages: int | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
    widths: Sequence[int] | None = None,
    cuts: Sequence[int] | None = None,
    recompute: str | None = None,
    precision: str = "float32",
    plan: Plan | str | os.PathLike[str] | None = None,
    gradient_clipping: float = 0.0,
    learning_rate: Callable[[int], float] | Mapping[str, Any] | None = None,
    steps: int | None = None,
    loss_scale: Mapping[str, Any] | None = None,
    on_overflow: str | None = None,
    threads_per_rank: int | None = None,
    seed: int = 0,
    layers: str = "auto",
    lengths: Sequence[int] = (),
    cache: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Pipeline:
    """A pipeline that trains `module`: captures it, measures its layers, plans the stages, proves the
    program, and starts the ranks.

    module: on the CPU. It stays as it is: `module.load_state_dict(step.state_dict())` brings the weights
        back. Frozen parameters stay frozen. Experts of transformers are multiplied as by "batched_mm".
    batch: one like all to come: (input, target), or a mapping by the names of forward's parameters, whose
        other keys the loss alone reads. The input of a pair may be several, ((a, b), target), or a mapping.
        A forward of one argument, or of **fields, that names none of them gets the whole mapping, of which
        the first is the input; forward(*xs) has xs0, xs1 and so on. Tensors are on the CPU, [samples, ...].
        Its samples are those of one optimizer step.
    loss: a function of (what the module returns, the batch as a mapping by names) that returns a tensor of
        one number, a mean or a sum over samples or labels, or {"loss": it, "ce": ...} with terms that steps
        say beside it; "cross_entropy" or "mse" of the output and the
        target; or None: the loss that the module returns.
    optimizer: stagecraft.AdamW(lr=...) and others, or a new instance of torch.optim with the module's
        parameters, of which settings and groups are read.
    stages, schedule, widths, cuts, recompute: as in a config's `pipeline` and `activation_checkpointing`.
        What is left out is chosen, and shown by `.plan`.
    micro_batches: per step; 8, or one per sample where there are fewer samples.
    precision: "float32", or "bfloat16" and "float16" for what is computed beside float32 weights. A module
        of float64 is trained in it; one of narrow weights as if they had been float32.
    plan: a Plan, or the path of a plan.json, which decides stages, schedule and cuts.
    gradient_clipping: the norm that the whole gradient has at most; 0: any.
    learning_rate: a function of the step, counted from 0, or a config's `scheduler`; None: the optimizer's.
    steps: those of the whole training, for a `scheduler` that needs them. More may be made.
    loss_scale, on_overflow: as `fp16` and `on_overflow` in a config.
    threads_per_rank: of PyTorch's operators; by default the machine's cores divided by its ranks. Bits depend
        on it, as in a loop on torch.set_num_threads.
    seed: of the dropout's random numbers.
    layers: where the module may be cut, as stagecraft-capture --layers.
    lengths: that samples may have besides the first batch's, in their first dimension.
    cache: False captures anew, whatever was captured before.
    config: further keys of a config, which go before all of these.

    Under torchrun and mpirun every process calls it alike, and is one rank. Throws InputError, CaptureError
    and RefusedError.
    """
    rates, scheduler = rates_of(learning_rate, steps)
    prepared = prepared_of(
        module,
        batch,
        loss=loss,
        optimizer=optimizer,
        micro_batches=micro_batches,
        precision=precision,
        layers=layers,
        lengths=lengths,
        cache=cache,
    )
    made = prepared.config | {
        "train_steps": steps or ENDLESS,
        "seed": seed,
        "gradient_clipping": gradient_clipping,
        "pipeline": {
            key: value
            for key, value in {
                "stages": stages,
                "schedule": schedule,
                "widths": list(widths) if widths else None,
                "cuts": list(cuts) if cuts else None,
                "plan": None if plan is None or isinstance(plan, Plan) else os.fspath(plan),
            }.items()
            if value is not None
        },
    }
    if recompute is not None:
        made["activation_checkpointing"] = {"recompute": recompute}
    if loss_scale is not None:
        made["fp16"] = {"enabled": True, **loss_scale}
    if on_overflow is not None:
        made["on_overflow"] = on_overflow
    if threads_per_rank is not None and threads_per_rank < 1:
        raise InputError(f"threads_per_rank: expected 1 or more, found {threads_per_rank}")
    if threads_per_rank is not None:
        made["threads_per_rank"] = threads_per_rank
    if scheduler is not None:
        made["scheduler"] = dict(scheduler)
    if not isinstance(plan, Plan):
        return _begun(merged(made, config or {}), prepared, rates, module)
    with tempfile.TemporaryDirectory(prefix="stagecraft-plan-") as place:
        plan.save(f"{place}/plan.json")
        made["pipeline"]["plan"] = f"{place}/plan.json"
        return _begun(merged(made, config or {}), prepared, rates, module)


def _begun(
    config: dict[str, Any],
    prepared: Prepared,
    rates: Callable[[int], float] | None,
    module: torch.nn.Module,
) -> Pipeline:
    """With the module's weights, which a folder from the cache has not."""
    step = Pipeline(config, prepared.reader, prepared.fields, prepared.folder, rates=rates)
    step._compare_processes(config, module)
    held = set(step._session.state_names())
    state = module.state_dict(keep_vars=True)
    of_tensor: dict[int, str] = {}
    for name, tensor in state.items():
        if name in held:
            of_tensor.setdefault(id(tensor), name)
    step._aliases = {name: of_tensor[id(t)] for name, t in state.items() if id(t) in of_tensor}
    step._others = {name: t.detach().clone() for name, t in state.items() if id(t) not in of_tensor}
    missing = held - set(step._aliases.values())
    if missing:  # buffers that are not persistent
        more = {**dict(module.named_parameters(remove_duplicate=False)), **_buffers(module)}
        state = {**state, **{name: more[name] for name in missing if name in more}}
    step._session.set_state({name: state[name].detach() for name in held if name in state})
    return step


def _digest(module: torch.nn.Module) -> str:
    """Of names and numbers."""
    import torch

    found = hashlib.blake2b(digest_size=16)
    for name, tensor in module.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_buffers(remove_duplicate=False))


def _step_of(made: dict[str, Any]) -> Step:
    return Step(
        step=made["step"],
        loss=made["loss"],
        norm=made["norm"],
        learning_rate=made["learning_rate"],
        seconds=made["seconds"],
        samples=made["samples"],
        tokens=made["tokens"],
        skipped=made["skipped"],
        loss_scale=made["loss_scale"],
        ranks=tuple(RankTime(*rank) for rank in made["ranks"]),
        terms=made["terms"],
    )
