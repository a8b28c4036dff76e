"""What the records of ``assay run`` say: the time of each workload on each device, and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Finding, Findings
from assay.core.units import format_time
from assay.experiments.run.plan import role_names, trials_of
from assay.experiments.run.rates import ceilings, facts_of, rates_of, shares_of
from assay.experiments.times import TIMES, decisive
from assay.stats.summary import estimate, slowest

if TYPE_CHECKING:
    from assay.core.results import Estimate, Record, Verdict
    from assay.core.values import Params
    from assay.experiments.run.plan import RunOptions
    from assay.experiments.run.rates import Ceilings
    from assay.stats.summary import Samples
    from assay.store.records import Records


def analyse(options: RunOptions, records: Records) -> Findings:
    """Return the time of each workload on each device, and whether it is known as exactly as was wanted."""
    most = ceilings(options, records)
    findings = tuple(
        finding
        for subject in range(len(options.subjects))
        for role in role_names(options)
        if (finding := _finding(options, records, subject, role, most)) is not None
    )
    return Findings(headline=_headline(options, findings), findings=findings)


def records_of(options: RunOptions, records: Records, subject: int, role: str) -> list[Record]:
    """Return the records in which a subject was timed in a role."""
    trial_ids = {
        trial.id
        for repeat in range(1, options.repeat + 1)
        for trial in trials_of(options, f"repeat-{repeat}", repeat)
        for cast in trial.roles
        if cast.name == role and cast.subjects[0] == options.subjects[subject]
    }
    return [record for record in records if record.trial in trial_ids]


def samples_by_process(records: Records, chosen: list[Record], role: str, quantity: str) -> list[Samples]:
    """Return the samples of a quantity, one array a process; over ranks the slowest of each iteration."""
    processes: list[Samples] = []
    for record in chosen:
        series = [s for s in record.series if s.role == role and s.quantity == quantity]
        processes += [
            slowest([records.samples(s) for s in series if s.restart == restart])
            for restart in sorted({s.restart for s in series})
        ]
    return processes


def _finding(options: RunOptions, records: Records, subject: int, role: str, most: Ceilings) -> Finding | None:
    """Return what is known of one subject in one role; null when nothing was even tried."""
    tried = records_of(options, records, subject, role)
    if not tried:
        return None
    good = [record for record in tried if record.status == "ok"]
    label = options.subjects[subject].label
    if not good:
        last = tried[-1]
        return Finding(
            claim=f"{label} can be timed on {role}",
            estimate=None,
            verdict="no",
            reason=last.reason,
            records=tuple(record.trial for record in tried),
            facts={"workload": label, "device": role, "status": last.status},
            origin=last.origin,
        )
    quantity = decisive(good, role)
    processes = samples_by_process(records, good, role, quantity)
    command = options.subjects[subject].command is not None
    time_estimate = estimate(processes, "µs", scope_of_one="run" if command else "process")
    facts = facts_of(good, role)
    rates = rates_of(facts, time_estimate.value)
    verdict, reason = _judge(time_estimate, options.precision)
    return Finding(
        claim=f"{label} on {role}, {options.mode}: {TIMES[quantity]} is known to ±{options.precision:.2%}",
        estimate=time_estimate,
        verdict=verdict,
        reason=reason,
        records=tuple(record.trial for record in good),
        facts={
            "workload": label,
            "device": role,
            "processes": len(processes),
            "quantity": quantity,
            **_other_times(records, good, role, quantity),
            "method": facts.timed.method if facts and facts.timed else None,
            "cache": facts.timed.cache if facts and facts.timed and facts.timed.method != "wall" else None,
            "backend": facts.backend if facts else None,
            **rates,
            **shares_of(rates, options.subjects[subject], role, most),
        },
        origin=good[0].origin,
    )


def _other_times(records: Records, good: list[Record], role: str, quantity: str) -> Params:
    """Return the medians of the other times and of the clock; null where they were not taken."""
    medians: Params = {}
    for name in (*TIMES, "clock_mhz"):
        if name != quantity:
            processes = samples_by_process(records, good, role, name)
            medians[name] = float(np.median(np.concatenate(processes))) if processes else None
    return medians


def _judge(found: Estimate, precision: float) -> tuple[Verdict, str | None]:
    half_width = found.relative_half_width
    if half_width is None:
        return "unsure", f"{found.method}; more processes (--restarts, a longer --duration) give one over them"
    if half_width <= precision:
        return "yes", None
    return "no", f"it is known to ±{half_width:.2%}; a longer --duration or more --repeat narrows it"


def _headline(options: RunOptions, findings: tuple[Finding, ...]) -> str:
    """Return the result in one sentence."""
    measured = [f for f in findings if f.estimate is not None]
    if not measured:
        return "Nothing could be measured."
    how = f"over {options.ranks} ranks" if options.ranks > 1 else "alone"
    if options.mode == "concurrent" and len(options.devices) > 1:
        how = "side by side"
    times_by_workload: dict[str, list[str]] = {}
    for f in measured:
        if f.estimate is not None:
            where = f"{format_time(f.estimate.value)} on {f.facts['device']}"
            times_by_workload.setdefault(str(f.facts["workload"]), []).append(where)
    parts = [f"{workload} takes {_listed(texts)}" for workload, texts in times_by_workload.items()]
    more = f"; and {len(parts) - 3} more" if len(parts) > 3 else ""
    half_widths = [w for f in measured if f.estimate is not None and (w := f.estimate.relative_half_width) is not None]
    sure = f" The widest interval is ±{max(half_widths):.1%}." if half_widths else ""
    refused = len(measured) - len(half_widths)
    if refused:
        sure += f" {refused} ha{'s' if refused == 1 else 've'} no interval; the table says why."
    return f"{'; '.join(parts[:3])}{more} ({how}).{sure}"


def _listed(told: list[str]) -> str:
    """Write "a, b and c", and of many only the first few."""
    if len(told) > 4:
        return f"{', '.join(told[:3])} and so on"
    return " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
