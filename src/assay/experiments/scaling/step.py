"""What to measure next: the blocks in order, each shape of several ranks with what is predicted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.plan import Done
from assay.experiments.scaling.forecast import as_numbers, forecast
from assay.experiments.scaling.plan import blocks, planned
from assay.experiments.scaling.timings import laid_out

if TYPE_CHECKING:
    from assay.core.plan import Block
    from assay.experiments.scaling.options import ScalingOptions
    from assay.store.records import Records


def step(options: ScalingOptions, records: Records) -> Block | Done:
    """Return the next block that has not been measured; the same records give the same answer."""
    measured = {record.block for record in records}
    left = [block for block in blocks(options) if block.name not in measured]
    if not left:
        return Done(why=f"all {len(measured)} blocks are measured")
    return left[0].model_copy(
        update={"left_s": left_s(left, records), "prediction": prediction(options, left[0], records)}
    )


def prediction(options: ScalingOptions, block: Block, records: Records) -> dict[str, float] | None:
    """Return what is predicted of a block of several ranks; null without a link."""
    if options.link is None:
        return None
    ids = {trial.id for trial in block.trials}
    plan = next(planned_trial for planned_trial in planned(options) if planned_trial.trial.id in ids)
    if plan.shape.world == 1:
        return None
    predicted = forecast(options, laid_out(options, records), plan.shape, plan.repeat)
    return None if predicted is None else as_numbers(predicted, options, plan.shape)


def left_s(left: list[Block], records: Records) -> float | None:
    """Return about how long the rest takes, from the longest trial so far; null before the first.

    A trial of more ranks than any so far starts more processes at once, and is given twice the time.
    """
    longest_s = max(((r.window.end_ns - r.window.start_ns) / 1e9 for r in records), default=None)
    if longest_s is None:
        return None
    most = max((1 + series.rank for record in records for series in record.series), default=1)
    ranks = [trial.roles[0].ranks for block in left for trial in block.trials]
    return longest_s * sum(1 if count <= most else 2 for count in ranks)
