"""Numbers of files that hold judged claims, or what ``assay time --json`` printed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.results import Finding
from assay.core.units import unit_of
from assay.core.values import first_problem
from assay.experiments.comparing.values import Name, Number
from assay.store.identity import Detail, details_in, model_in
from assay.timing.values import Comparison, Measurement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue

    from assay.core.results import Estimate

WRITTEN = {"us": "µs"}
"""Units that are written in two ways."""

QUANTITIES = ("busy_us", "span_us", "call_us")


def of_findings(found: list[JsonValue], model: str | None) -> list[Number]:
    """Return the number of each claim that has one.

    Raises:
        BadInput: A claim is not what this version of Assay writes; the sentence has no file name.
    """
    try:
        findings = [Finding.model_validate(entry) for entry in found]
    except ValidationError as error:
        raise BadInput(f"a finding is not what this version of Assay writes: {first_problem(error)}") from None
    numbers: list[Number] = []
    counts: Counter[str] = Counter()
    for finding in findings:
        counts[finding.claim] += 1
        again = (Detail("conditions", "number", str(counts[finding.claim])),) if counts[finding.claim] > 1 else ()
        if finding.estimate is not None:
            identity = finding.identity or {}
            details = (*details_in(identity), *again)
            name = Name(finding.claim, details, finding.estimate.unit or "value", finding.estimate.method_key)
            numbers.append(_number(name, None, model_in(identity) or model, finding.estimate))
    return numbers


def of_timed(content: dict[str, JsonValue]) -> list[Number]:
    """Return the times that ``assay time --json`` printed.

    Raises:
        BadInput: It is not what this version of Assay writes; the sentence has no file name.
    """
    try:
        if content.get("measurement") is not None:
            return list(_measured(Measurement.model_validate(content["measurement"])))
        return list(_compared(Comparison.model_validate(content["comparison"])))
    except ValidationError as error:
        raise BadInput(f"it is not what this version of Assay writes: {first_problem(error)}") from None


def _measured(found: Measurement) -> Iterator[Number]:
    for quantity in QUANTITIES:
        estimate = getattr(found, quantity)
        if estimate is not None:
            name = Name(found.name, _conditions(found), quantity, estimate.method_key)
            yield _number(name, found.device, None, estimate, found.processes)


def _compared(found: Comparison) -> Iterator[Number]:
    times = {found.first: found.first_us, **{other.name: other.time_us for other in found.others}}
    for work, estimate in times.items():
        name = Name(work, _conditions(found), found.quantity, estimate.method_key)
        yield _number(name, found.device, None, estimate, found.processes)


def _conditions(found: Measurement | Comparison) -> tuple[Detail, ...]:
    return Detail("device", "on", found.device.partition(":")[0]), Detail("conditions", "cache", found.cache)


def _number(
    name: Name, device: str | None, model: str | None, estimate: Estimate, processes: int | None = None
) -> Number:
    return Number(
        name=name,
        device=device,
        model=model,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        unit=WRITTEN.get(estimate.unit, estimate.unit) or unit_of(name.quantity),
        processes=1 if estimate.scope == "process" else processes,
    )
