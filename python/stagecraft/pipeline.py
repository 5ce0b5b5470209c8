"""A pipeline of a module: captured, profiled, planned and proved when it is made, then stepped batch by
batch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from stagecraft_planner import Plan
from stagecraft_planner.nearest import keywords_checked

from . import captured, checks
from .errors import InputError, StagecraftError
from .fields import Reader, is_micro_batches
from .launch import Ranks, close_at_the_end, end_before_all, ranks_of_this_start
from .optimizers import Optimizer
from .prepared import Prepared, inside, merged, prepared_of, rates_of
from .steps import Step, begun, step_of, went_well
from .telling import phase

if TYPE_CHECKING:
    import torch

    from stagecraft_follow.step_log import StepLog

    Inputs: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...] | Mapping[str, torch.Tensor]
    Rate: TypeAlias = Callable[[int], float] | torch.optim.lr_scheduler.LRScheduler
    Batch: TypeAlias = tuple[Inputs, torch.Tensor] | Mapping[str, torch.Tensor]

ENDLESS = 1_000_000_000  # steps of a run whose length nobody says


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
        ranks: Ranks,
        checkpoint: str = "",
        rates: Callable[[int], float] | None = None,
        aliases: Mapping[str, str] | None = None,
        others: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        from .engine import _engine

        self._reader, self._folder, self._rates = reader, folder, rates
        self._lr: float | None = None  # set for all steps to come, or the newest of `rates`
        self._logs: list[StepLog] = []
        self._to_log: list[Step] = []
        self._aliases, self._others = dict(aliases or {}), dict(others or {})
        self._ranks = ranks
        with phase("measuring layers, planning and proving"):
            self._session = _engine.Session(
                json.dumps(config),
                dict(first),
                checkpoint,
                ranks.name,
                ranks.machine_rank,
                ranks.machine_world,
            )
        close_at_the_end(self)
        if not self._aliases:
            self._aliases = {name: name for name in self._session.state_names()}

    def __call__(self, batch: Batch | list[Batch]) -> Step:
        """One optimizer step, with the bits of the plain loop over the same micro-batches.

        batch: like the one that the pipeline was made for: the same names, types and sizes of a sample, on
            the CPU. Tensors are [samples, ...] with any number of samples: fewer make fewer micro-batches.
            Or a list of such batches, each of which is one micro-batch of any size up to the first's; their
            samples weigh as in one batch.

        Returns when the ranks have got a copy of the batch, at most one step behind the one that they carry
        out. What it returns waits when it is read, and every other call waits for all steps.

        Throws InputError for a batch that does not fit. A step that goes wrong throws when it is read, or
        else at the next call: NotFiniteError for a loss or a gradient that is no number, PeerError where
        another process died or hangs. Steps begun behind it were not made. NotFiniteError leaves everything
        as it was before its step; any other error ends the pipeline.
        """
        with self._refused_by_all():
            fields, sizes = self._fields(batch)
            rate = self._rate()
        made = begun(self._session.step(fields, sizes, rate))
        if self._logs:
            self._to_log.append(made)
            self._log()
        return made

    def _log(self) -> None:
        """Steps that are over. One that went wrong says so where it is read."""
        while self._to_log and self._to_log[0].is_over:
            made = self._to_log.pop(0)
            for log in self._logs if went_well(made) else ():
                log.step(made)

    def evaluate(self, batch: Batch | list[Batch]) -> Step:
        """The loss of a batch in evaluation mode, without gradients. Changes nothing.

        batch: as for a step. Throws InputError for a batch that does not fit."""
        with self._refused_by_all():
            fields, sizes = self._fields(batch)
        made = step_of({**self._session.evaluate(fields, sizes), "learning_rate": None})
        self._log()
        for log in self._logs:
            log.evaluation(made)
        return made

    def _fields(self, batch: Any) -> tuple[dict[str, torch.Tensor], list[int]]:
        if is_micro_batches(batch):
            return self._reader.joined(batch)
        return self._reader.fields(batch), []

    def _rate(self) -> float | None:
        """Of the next step; None: the config's."""
        if self._rates is None:
            return self._lr
        number = int(self._session.steps())
        self._lr = checks.rate(f"learning_rate of step {number}", self._rates(number))
        return self._lr

    @contextlib.contextmanager
    def _refused_by_all(self) -> Iterator[None]:
        """Other processes must not wait for a batch that this one refuses."""
        try:
            yield
        except InputError as error:
            self._session.refuse(str(error))
            raise

    def close(self, why: str = "") -> None:
        """Ends the ranks behind what is under way, and frees what they hold. Later calls throw InputError.
        `why`: of several processes, the reason why the others must not wait for this one.

        Throws the error of a step that nobody has read, when all is closed."""
        try:
            self._session.close(why)
        finally:
            self._log()
            logs, self._logs = self._logs, []
            for log in logs:
                log.close()
            self._ranks.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(StagecraftError):  # that error goes first
            self.close(f"{type(error).__name__}: {error}")

    @property
    def steps(self) -> int:
        """Optimizer steps made so far, with those before a checkpoint. Waits for what is under way."""
        self._session.settle()
        return int(self._session.steps())

    @property
    def config(self) -> dict[str, Any]:
        """The run's config, as run.json has it, with all that was chosen, and what `set_lr` said. A copy."""
        found: dict[str, Any] = json.loads(self._session.config())
        if self._rates is None and self._lr is not None:
            found["optimizer"]["params"]["lr"] = self._lr
            found["scheduler"] = {"type": "constant"}
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
        """The capture's table of layers, and how it compares with eager; "" of a run directory's model."""
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

        state: what `state_dict` has, of the same shapes; copied. Throws InputError for a missing one, and for
        one that is none of the pipeline's."""
        state = checks.mapping("the state", state)
        missing = [name for name in self._aliases if name not in state]
        unknown = [str(name) for name in state if name not in self._aliases and name not in self._others]
        if missing or unknown:
            wrong = [f"has no {checks.some(missing)}"] if missing else []
            wrong += [f"has {checks.some(unknown)}, which the pipeline has not"] if unknown else []
            raise InputError(f"the state {', and '.join(wrong)}")
        self._session.set_state({held: state[name] for name, held in reversed(self._aliases.items())})

    def _compare_processes(self, config: Mapping[str, Any], module: torch.nn.Module) -> None:
        """Of several processes each has a module of its own, and holds stages of it: they must be equal."""
        if not self._session.is_process():
            return
        of_config = {k: v for k, v in config.items() if k != "model"}
        mine = {"arguments": json.dumps(of_config, sort_keys=True), "module's weights": _digest(module)}
        all_of_them = [json.loads(text) for text in self._session.gather(json.dumps(mine).encode())]
        for rank, theirs in enumerate(all_of_them):
            for what, value in all_of_them[0].items():
                if theirs[what] != value:
                    raise InputError(
                        f"rank {rank} has other {what} than rank 0: give all processes the same, with the"
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

        lr: a finite number of 0 or more; else throws InputError."""
        self._lr, self._rates = checks.rate("set_lr", lr), None

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
        end_before_all()  # a client ends itself when Python does, and has to have the last steps by then

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes a checkpoint into the run directory `path`, as `stagecraft train` does, and returns its
        folder. Of several processes all must call it. `load(path)` goes on from it, and so does `stagecraft
        train --resume`. Throws InputError where it cannot be written: no part of it is left, older ones
        stay, and the pipeline goes on. Throws PeerError where another process has saved there since this
        pipeline did, or was loaded from there."""
        root = os.path.abspath(checks.path("save", path))
        given = None if self._rates is None and self._lr is None else (self._lr, self._rates is not None)
        return str(self._session.save(root, lambda: self._keep_model(Path(root)), given))

    def _keep_model(self, root: Path) -> None:
        """A copy of the model folder beside the checkpoints, and a config that names it."""
        kept = root / "model"
        if not kept.exists():
            aside = tempfile.mkdtemp(prefix="model.", dir=root)
            try:
                shutil.copytree(self._folder.path, aside, dirs_exist_ok=True)
                os.rename(aside, kept)
            except OSError as error:
                shutil.rmtree(aside, ignore_errors=True)
                if isinstance(error, shutil.Error):  # of each file its source, target and reason
                    raise OSError(str(error.args[0][0][2])) from error
                raise
        config = self.config
        config["model"]["path"], config["run_dir"] = str(kept), str(root)
        descriptor, name = tempfile.mkstemp(prefix="config.", dir=root)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(config, file, indent=2)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, root / "config.json")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a pipeline has threads of its own and is not copied: save(path) and stagecraft.load(path) make"
            " another one, and state_dict() has its weights"
        )

    def __repr__(self) -> str:
        plan = self.plan
        return (
            f"<stagecraft.Pipeline: {plan.schedule.name} of {len(plan.stages)} stages,"
            f" {self._session.steps()} steps>"
        )


@keywords_checked
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
    precision: str | torch.dtype = "float32",
    plan: Plan | str | os.PathLike[str] | None = None,
    gradient_clipping: float = 0.0,
    learning_rate: Rate | Mapping[str, Any] | None = None,
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
        back. Frozen parameters stay frozen. Experts of transformers are multiplied as by "grouped_mm".
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
    precision: "float32", or "bfloat16" and "float16" for what is computed beside float32 weights, or a dtype
        of torch's of these names. A module of float64 is trained in it; one of narrow weights as if they had
        been float32.
    plan: a Plan, or the path of a plan.json, which decides stages, schedule and cuts.
    gradient_clipping: the norm that the whole gradient has at most; 0: any.
    learning_rate: a function of the step, counted from 0; or one of torch.optim.lr_scheduler, which is read
        as if stepped behind each step, and stays as it is; or a config's `scheduler`; None: the optimizer's.
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

    def prepare() -> tuple[Prepared, Callable[[int], float] | None]:
        rates, scheduler = rates_of(learning_rate, optimizer, steps)
        if (threads := checks.whole("threads_per_rank", threads_per_rank)) is not None and threads < 1:
            raise InputError(f"threads_per_rank: expected 1 or more, found {threads_per_rank}")
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
        said = {
            "train_steps": steps or ENDLESS,
            "seed": seed,
            "gradient_clipping": gradient_clipping,
            "pipeline": {
                "stages": stages,
                "schedule": schedule,
                "widths": checks.wholes("widths", widths),
                "cuts": checks.wholes("cuts", cuts),
                "plan": None if plan is None or isinstance(plan, Plan) else checks.path("plan", plan),
            },
            "activation_checkpointing": recompute and {"recompute": recompute},
            "fp16": None if loss_scale is None else {"enabled": True, **loss_scale},
            "on_overflow": on_overflow,
            "threads_per_rank": threads_per_rank,
            "scheduler": scheduler and dict(scheduler),
        }
        prepared.config.update(_without_nones(said))
        merged(prepared.config, checks.keys_of_a_config(config))
        return prepared, rates

    ranks = ranks_of_this_start()
    with ranks.closed_by_an_error():
        prepared, rates = ranks.together(prepare)
        if not isinstance(plan, Plan):
            return _begun(prepared, rates, module, ranks)
        with plan_file(plan.to_json(), "plan") as prepared.config["pipeline"]["plan"]:
            return _begun(prepared, rates, module, ranks)


@contextlib.contextmanager
def plan_file(text: str, name: str) -> Iterator[str]:
    """A path at which the plan lies meanwhile. Errors call it `name`."""
    with tempfile.TemporaryDirectory(prefix="stagecraft-plan-") as place:
        path = os.path.join(place, "plan.json")
        Path(path).write_text(text, encoding="utf-8")
        try:
            yield path
        except StagecraftError as error:
            error.args = tuple(str(each).replace(path, name) for each in error.args)
            raise


def _without_nones(said: Mapping[str, Any]) -> dict[str, Any]:
    """In objects within it, too."""
    return {
        key: _without_nones(value) if isinstance(value, dict) else value
        for key, value in said.items()
        if value is not None
    }


def _begun(
    prepared: Prepared,
    rates: Callable[[int], float] | None,
    module: torch.nn.Module,
    ranks: Ranks,
) -> Pipeline:
    """With the module's weights, which a folder from the cache has not."""
    try:
        step = Pipeline(
            prepared.config, prepared.reader, prepared.fields, prepared.folder, ranks, rates=rates
        )
    except InputError as error:
        why = re.search(r"^all is one layer: .*", prepared.folder.said, re.MULTILINE)
        if why is None or "but the model has" not in str(error):
            raise
        raise InputError(f"{error}; {why[0]}") from error
    step._compare_processes(prepared.config, module)
    held = set(step._session.state_names())
    state, inner = module.state_dict(keep_vars=True), inside(module)
    of_tensor: dict[int, str] = {}
    for name, tensor in inner.state_dict(keep_vars=True).items():
        if name in held:
            of_tensor.setdefault(id(tensor), name)
    step._aliases = {name: of_tensor[id(t)] for name, t in state.items() if id(t) in of_tensor}
    step._others = {name: t.detach().clone() for name, t in state.items() if id(t) not in of_tensor}
    missing = held - set(step._aliases.values())
    if missing:  # buffers that are not persistent
        more = {**dict(inner.named_parameters(remove_duplicate=False)), **_buffers(inner)}
        state = {**state, **{name: more[name] for name in missing if name in more}}
    its = {**state, **inner.state_dict(keep_vars=True)}
    step._session.set_state({name: its[name].detach() for name in held if name in its})
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
