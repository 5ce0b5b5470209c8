"""What a model's layers cost: profile.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .document import Document
from .errors import InputError
from .nearest import keywords_checked
from .tables import Table, bytes_text, ms_text


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A median over repeats with its interquartile range."""

    median_ms: float
    spread_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class InputProfile:
    """What a layer does with one tensor before it, where there are several."""

    kept: bool = False  # backward needs it
    kept_for_weight: bool = False  # the weight half does
    makes_gradient: bool = False  # its gradient has memory of its own
    gradient_of: int | None = None  # the output whose gradient is its gradient


@dataclass(frozen=True, kw_only=True)
class OutputProfile:
    """The same of one tensor behind a layer."""

    bytes: int
    same_as: int | None = None  # the input whose memory it has; None: its own
    has_gradient: bool = True
    kept: bool = False
    kept_for_weight: bool = False
    gradient_kept: bool = False


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer at one micro-batch size. Bytes are requested tensor bytes of one micro-batch."""

    name: str  # unique in the model
    forward: Timing
    backward_input: Timing  # gradient of the input
    backward_weight: Timing  # gradient of the weights
    step: Timing = Timing(median_ms=0.0)  # optimizer update
    parameter_bytes: int
    compute_copy_bytes: int = 0  # mixed precision: the copy of the weights that the layer reads
    buffer_bytes: int = 0
    output_bytes: int  # the boundary behind the layer
    kept_for_input_bytes: int = 0  # kept from forward to the input gradient
    kept_for_weight_bytes: int = 0  # kept from the input gradient to the weight gradient
    keeps_input: bool = False
    keeps_output: bool = False
    weight_half_keeps_input: bool | None = None
    weight_half_keeps_output: bool | None = None
    weight_half_keeps_gradient: bool = False
    output_is_input: bool = False
    inputs: tuple[InputProfile, ...] = ()
    outputs: tuple[OutputProfile, ...] = ()
    fields: tuple[str, ...] = ()  # of the batch that it reads besides its input
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0
    backward_input_transient_bytes: int | None = None
    backward_weight_transient_bytes: int | None = None
    optimizer_bytes: int | None = None
    step_transient_bytes: int | None = None
    measured_as: str | None = None
    frozen: bool | None = None

    @property
    def backward_ms(self) -> float:
        """Both halves."""
        return self.backward_input.median_ms + self.backward_weight.median_ms


@dataclass(frozen=True, kw_only=True)
class FieldBytes:
    """A field of the batch, of one micro-batch."""

    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All layers at one micro-batch size. The last layer computes the loss."""

    read_bytes: int = 0  # of the data as it is read, where it is then made into another type
    micro_batch: int  # samples
    input_bytes: int = 0  # of the model's input, one micro-batch
    targets_bytes: int = 0
    fields: tuple[FieldBytes, ...] = ()
    loss_bytes: int | None = None  # of a loss report; None: 16, the loss has no terms
    layers: tuple[Layer, ...]


@dataclass(frozen=True, kw_only=True)
class TiedWeight:
    """A weight that several layers hold; each counts its copy among its parameters."""

    name: str
    layers: tuple[int, ...]
    bytes: int  # of one copy


@dataclass(frozen=True, kw_only=True)
class LinkMeasurement:
    """A transport, measured one way."""

    transport: str
    latency_ms: float
    bytes_per_second: float
    latency_spread_ms: float | None = None  # interquartile ranges
    bytes_per_second_spread: float | None = None


Numbers = float | Sequence[float]


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile(Document):
    """What each layer costs, at one or several micro-batch sizes. Times in ms, sizes in bytes."""

    _kind: ClassVar[str] = "profile"
    model: str = ""  # for people
    model_fingerprint: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    times_of: str | None = None
    device_mhz: int = 0
    device_most_mhz: int = 0
    threads: int = 1
    busy_ranks: int = 1
    repeats: int = 1
    optimizer: str = ""
    optimizer_bytes_per_parameter_byte: float = 0.0  # Adam: 2
    ties: tuple[TiedWeight, ...] = ()
    measurements: tuple[Measurement, ...]  # one per micro-batch size
    link: LinkMeasurement | None = None
    estimated_from: str | None = None
    tokens_per_sample: int | None = None
    multiply_adds_per_sample: int | None = None  # of one forward
    peak_tflops: float | None = None  # of one device
    core_share: float | None = None  # that the measuring thread got of a core

    @classmethod
    @keywords_checked
    def of_layers(
        cls,
        forward_ms: Sequence[float],
        *,
        backward_ms: Numbers | None = None,
        backward_input_ms: Numbers | None = None,
        backward_weight_ms: Numbers | None = None,
        step_ms: Numbers = 0.0,
        parameter_bytes: Numbers = 0,
        output_bytes: Numbers = 0,
        kept_bytes: Numbers = 0,
        input_bytes: int = 0,
        targets_bytes: int = 0,
        names: Sequence[str] | None = None,
        micro_batch: int = 1,
        optimizer: str = "",
        optimizer_bytes_per_parameter_byte: float = 0.0,
        model: str = "",
        dtype: str = "float32",
    ) -> Profile:
        """A profile of n layers from numbers, at one micro-batch size. The last layer computes the loss.

        forward_ms: n times of one micro-batch. Everything else is one number for all layers, or n numbers.
        backward_ms: of the whole backward, half of it for either half; or give the halves,
            backward_input_ms and backward_weight_ms. None of them: each half takes as long as the forward.
        step_ms: of the optimizer's update.
        parameter_bytes: of the weights.
        output_bytes: of the boundary behind a layer, one micro-batch. The last layer sends nothing.
        kept_bytes: what the layer keeps from its forward to its backward, one micro-batch.
        input_bytes, targets_bytes: what a micro-batch of the data takes.
        micro_batch: samples per micro-batch that the times are of.
        optimizer_bytes_per_parameter_byte: Adam: 2, SGD with momentum: 1.
        """
        count = len(forward_ms)
        if count == 0:
            raise InputError("forward_ms: is empty; expected one time per layer")
        halves = (backward_input_ms, backward_weight_ms)
        if backward_ms is not None and halves != (None, None):
            raise InputError(
                "backward_ms: is of both halves; give it, or backward_input_ms and backward_weight_ms"
            )
        whole = (
            None if backward_ms is None else [ms / 2 for ms in _per_layer("backward_ms", backward_ms, count)]
        )
        first, second = (
            whole or (list(forward_ms) if half is None else _per_layer(name, half, count))
            for name, half in zip(("backward_input_ms", "backward_weight_ms"), halves)
        )
        steps = _per_layer("step_ms", step_ms, count)
        parameters = _per_layer("parameter_bytes", parameter_bytes, count)
        outputs = [*_per_layer("output_bytes", output_bytes, count)[:-1], 0]
        kept = _per_layer("kept_bytes", kept_bytes, count)
        called = [f"layer{at}" for at in range(count)] if names is None else list(names)
        if len(called) != count:
            raise InputError(f"names: expected {count} names, one per layer, found {len(called)}")
        layers = tuple(
            Layer(
                name=called[at],
                forward=Timing(median_ms=float(forward_ms[at])),
                backward_input=Timing(median_ms=float(first[at])),
                backward_weight=Timing(median_ms=float(second[at])),
                step=Timing(median_ms=float(steps[at])),
                parameter_bytes=int(parameters[at]),
                output_bytes=int(outputs[at]),
                kept_for_input_bytes=int(kept[at]),
            )
            for at in range(count)
        )
        measurement = Measurement(
            micro_batch=micro_batch, input_bytes=input_bytes, targets_bytes=targets_bytes, layers=layers
        )
        return cls(
            model=model,
            dtype=dtype,
            optimizer=optimizer,
            optimizer_bytes_per_parameter_byte=optimizer_bytes_per_parameter_byte,
            measurements=(measurement,),
        )

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Samples per micro-batch, of each measurement."""
        return tuple(measurement.micro_batch for measurement in self.measurements)

    def layers_at(self, micro_batch_size: int) -> tuple[Layer, ...]:
        """The layers as they were measured at that size; there is no extrapolation."""
        for measurement in self.measurements:
            if measurement.micro_batch == micro_batch_size:
                return measurement.layers
        sizes = " or ".join(map(str, self.micro_batch_sizes))
        raise InputError(
            f"{self._label}: there is no measurement of {micro_batch_size} samples, but of {sizes}"
        )

    def __repr__(self) -> str:
        return f"<Profile {self._summary()}>"

    def __str__(self) -> str:
        return "\n".join(table.text() for table in self._tables())

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self._tables())

    def _summary(self) -> str:
        sizes = " and ".join(map(str, self.micro_batch_sizes))
        layers = len(self.measurements[0].layers) if self.measurements else 0
        return f"{self.model or 'of a model'}: {layers} layers, micro-batches of {sizes}"

    def _tables(self) -> list[Table]:
        return [
            Table(
                f"{self.model or 'the model'}, micro-batches of {measurement.micro_batch}",
                ["layer", "<name", "F ms", "B ms", "step ms", "parameters", "boundary"],
                [
                    [
                        str(at),
                        layer.name,
                        ms_text(layer.forward.median_ms),
                        ms_text(layer.backward_ms),
                        ms_text(layer.step.median_ms),
                        bytes_text(layer.parameter_bytes),
                        bytes_text(layer.output_bytes),
                    ]
                    for at, layer in enumerate(measurement.layers)
                ],
            )
            for measurement in self.measurements
        ]


def _per_layer(name: str, value: Numbers, count: int) -> list[float]:
    many = getattr(value, "tolist", lambda: value)()  # of numpy and torch
    if isinstance(many, (int, float)):
        return [many] * count
    values = list(many)
    if len(values) != count:
        raise InputError(
            f"{name}: expected one number, or {count} of them, one per layer, found {len(values)}"
        )
    return values
