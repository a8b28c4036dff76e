"""Choose the next block, predict each shape before it is measured, and score the predictions afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.core.values import Done
from assay.experiments.scaling.plan import FIRST_REPEAT, ScalingShape, plan_blocks, plan_trials, shape_traffic
from assay.experiments.scaling.prediction import predict_time
from assay.experiments.scaling.timings import build_basis, collect_timings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.results import Estimate
    from assay.core.values import Block
    from assay.experiments.scaling.plan import ScalingOptions
    from assay.experiments.scaling.prediction import PredictedTime
    from assay.experiments.scaling.timings import ScalingTimings
    from assay.store.records import Records


PredictionOutcome = Literal["within", "faster", "slower", "unknown"]
"""Where the measured time lies: its interval meets the predicted one, or it lies below or above all of it."""


@dataclass(frozen=True)
class PredictionScore:
    """A prediction and the measurement."""

    shape: ScalingShape
    predicted: PredictedTime
    measured: Estimate | None
    outcome: PredictionOutcome

    @property
    def error(self) -> float | None:
        """Relative error of the predicted value: 0.1 is 10 % too high; null where nothing was measured."""
        if self.measured is None:
            return None
        return self.predicted.time_s.value * 1e6 / self.measured.value - 1


def predict_shape(
    options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape, repeat: int
) -> PredictedTime | None:
    """Return what is predicted before a repeat of a shape, from shares computed alone until then.

    Null without a link, or where no share was measured.
    """
    if options.link is None or not options.is_attention:
        return None
    alone = estimate_compute_alone(timings, shape, repeat)
    return None if alone is None else predict_time(alone, shape_traffic(options, shape), options.link)


def estimate_compute_alone(timings: ScalingTimings, shape: ScalingShape, repeat: int) -> Estimate | None:
    """Return what a rank of a shape computes when it is alone, in seconds, from the repeats until one."""
    share = timings.timings_of("share", ScalingShape(shape.sequence, shape.ring, shape.ring))
    by_repeat = share if shape.ring > 1 else timings.timings_of("ring", shape.alone)
    basis = build_basis({number: timing for number, timing in by_repeat.items() if number <= repeat})
    if basis is None:
        return None
    slowest = basis.times[0].slowest
    values = slowest["share" if shape.ring > 1 else "total"]
    return basis.estimate(values / 1e6, "s", "median time of a share computed alone")


def prediction_to_numbers(predicted: PredictedTime, options: ScalingOptions, shape: ScalingShape) -> dict[str, float]:
    """Return a prediction as plain numbers, to be written down."""
    sent = shape_traffic(options, shape)
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


def score_predictions(
    options: ScalingOptions, timings: ScalingTimings, measured: Mapping[ScalingShape, Estimate | None]
) -> tuple[PredictionScore, ...]:
    """Return how the predictions fared that were made before the first repeat of each shape."""
    results = []
    for shape, time in measured.items():
        predicted = predict_shape(options, timings, shape, FIRST_REPEAT)
        if predicted is not None:
            results.append(PredictionScore(shape, predicted, time, judge_prediction(predicted.time_s, time)))
    return tuple(results)


def judge_prediction(predicted_s: Estimate, measured_us: Estimate | None) -> PredictionOutcome:
    """Return where the measured time lies; without intervals the values stand for them."""
    if measured_us is None or predicted_s.low is None or predicted_s.high is None:
        return "unknown"
    low, high = measured_us.bounds or (measured_us.value, measured_us.value)
    if high / 1e6 < predicted_s.low:
        return "faster"
    return "slower" if low / 1e6 > predicted_s.high else "within"


def next_block(options: ScalingOptions, records: Records) -> Block | Done:
    """Return the next block that has not been measured; the same records give the same answer."""
    measured = {record.block for record in records}
    left = [block for block in plan_blocks(options) if block.name not in measured]
    if not left:
        return Done(why=f"all {len(measured)} blocks are measured")
    return left[0].model_copy(
        update={"left_s": estimate_left_s(left, records), "prediction": predict_block(options, left[0], records)}
    )


def predict_block(options: ScalingOptions, block: Block, records: Records) -> dict[str, float] | None:
    """Return what is predicted of a block of several ranks; null without a link."""
    if options.link is None:
        return None
    ids = {trial.id for trial in block.trials}
    plan = next(planned_trial for planned_trial in plan_trials(options) if planned_trial.trial.id in ids)
    if plan.shape.world == 1:
        return None
    predicted = predict_shape(options, collect_timings(options, records), plan.shape, plan.repeat)
    return None if predicted is None else prediction_to_numbers(predicted, options, plan.shape)


def estimate_left_s(left: list[Block], records: Records) -> float | None:
    """Return about how long the rest takes, from the longest trial so far; null before the first.

    A trial of more ranks than any so far starts more processes at once, and is given twice the time.
    """
    longest_s = max(((r.window.end_ns - r.window.start_ns) / 1e9 for r in records), default=None)
    if longest_s is None:
        return None
    most = max((1 + series.rank for record in records for series in record.series), default=1)
    ranks = [trial.roles[0].ranks for block in left for trial in block.trials]
    return longest_s * sum(1 if count <= most else 2 for count in ranks)
