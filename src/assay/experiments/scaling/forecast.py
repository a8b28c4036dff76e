"""What is predicted of a shape before it is measured, and how that fared once it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.experiments.scaling.plan import FIRST
from assay.experiments.scaling.prediction import predict
from assay.experiments.scaling.problem import traffic
from assay.experiments.scaling.shapes import Shape
from assay.experiments.scaling.vectors import basis_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.results import Estimate
    from assay.experiments.scaling.numbers import Known
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.prediction import Predicted
    from assay.experiments.scaling.timings import Laid

Outcome = Literal["within", "faster", "slower", "unknown"]
"""Where the measured time lies: its interval meets the predicted one, or it lies below or above all of it."""


@dataclass(frozen=True)
class Score:
    """A prediction beside what was measured."""

    shape: Shape
    predicted: Predicted
    measured: Known
    outcome: Outcome

    @property
    def error(self) -> float | None:
        """By how much the predicted value is too high, as a share of the measured; null where nothing was measured."""
        if self.measured.value is None:
            return None
        return self.predicted.time_s.value * 1e6 / self.measured.value - 1


def forecast(options: ScalingOptions, laid: Laid, shape: Shape, repeat: int) -> Predicted | None:
    """Return what is predicted before a repeat of a shape, from shares computed alone until then.

    Null without a link, or where no share was measured.
    """
    if options.link is None or not options.is_attention:
        return None
    alone = compute_alone(laid, shape, repeat)
    return None if alone is None else predict(alone, traffic(options, shape), options.link)


def compute_alone(laid: Laid, shape: Shape, repeat: int) -> Estimate | None:
    """Return what a rank of a shape computes when it is alone, in seconds, from the repeats until one."""
    share = laid.of("share", Shape(shape.sequence, shape.ring, shape.ring))
    by_repeat = share if shape.ring > 1 else laid.of("ring", shape.alone)
    basis = basis_of({number: timing for number, timing in by_repeat.items() if number <= repeat})
    if basis is None:
        return None
    slowest = basis.times[0].slowest
    values = slowest["share" if shape.ring > 1 else "total"]
    return basis.estimate(values / 1e6, "s", "median time of a share computed alone")


def as_numbers(predicted: Predicted, options: ScalingOptions, shape: Shape) -> dict[str, float]:
    """Return a prediction as plain numbers, to be written down."""
    sent = traffic(options, shape)
    numbers = {
        "time_s": predicted.time_s.value,
        "time_low_s": predicted.time_s.low,
        "time_high_s": predicted.time_s.high,
        "compute_s": predicted.compute_s,
        "communication_s": predicted.communication_s,
        "received_bytes": float(sent.received_bytes),
        "messages": float(sent.messages),
    }
    return {name: value for name, value in numbers.items() if value is not None}


def scores(options: ScalingOptions, laid: Laid, measured: Mapping[Shape, Known]) -> tuple[Score, ...]:
    """Return how the predictions fared that were made before the first repeat of each shape."""
    results = []
    for shape, time in measured.items():
        predicted = forecast(options, laid, shape, FIRST)
        if predicted is not None:
            results.append(Score(shape, predicted, time, outcome(predicted.time_s, time)))
    return tuple(results)


def outcome(predicted_s: Estimate, measured_us: Known) -> Outcome:
    """Return where the measured time lies; without intervals the values stand for them."""
    if measured_us.estimate is None or predicted_s.low is None or predicted_s.high is None:
        return "unknown"
    low, high = measured_us.ends or (measured_us.estimate.value, measured_us.estimate.value)
    if high / 1e6 < predicted_s.low:
        return "faster"
    return "slower" if low / 1e6 > predicted_s.high else "within"
