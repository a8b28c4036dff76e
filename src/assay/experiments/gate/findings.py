"""What the records of a gate say, as findings: the gate's own answer, then every quantity that was judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate, Finding, Findings
from assay.experiments.gate.answers import answers, verdict_of
from assay.experiments.gate.words import SAID, change, headline, limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.gate.answers import Answer
    from assay.experiments.gate.options import GateOptions
    from assay.store.records import Records

METHOD = "geometric mean over restarts of the ratio of medians, Student's t; all looks together miss it in 5 % at most"


def analyse(options: GateOptions, records: Records) -> Findings:
    """Return whether head is within the limit, by everything that is judged and by each of it."""
    results = answers(options, records)
    sentence = headline(options, results, records)
    origin = next((record.origin for record in records if record.origin != "real"), "real")
    every = (_of_the_gate(options, results, sentence, records), *(_of_one(options, answer) for answer in results))
    return Findings(
        headline=sentence, findings=tuple(finding.model_copy(update={"origin": origin}) for finding in every)
    )


def _of_the_gate(options: GateOptions, found: Sequence[Answer], said: str, records: Records) -> Finding:
    verdict = verdict_of(found)
    return Finding(
        claim=f"head is not worse than base by more than {100 * options.minimum_effect:.3g} %",
        estimate=None,
        verdict=verdict,
        reason=said,
        records=tuple(record.trial for record in records),
        facts={
            "about": "gate",
            "answer": SAID[verdict],
            "unsure": options.unsure,
            "base": options.base.commit,
            "head": options.head.commit,
            "restarts": len(records),
            "minimum_effect": options.minimum_effect,
        },
    )


def _of_one(options: GateOptions, answer: Answer) -> Finding:
    interval = answer.change
    estimate = None
    if interval is not None:
        value, low, high = interval
        n = len(answer.pairs)
        estimate = Estimate(value=value, low=low, high=high, unit="×", scope="run", method=METHOD, n=n)
    return Finding(
        claim=f"the {answer.question.name} of head over that of base is within {limit(options, answer.question)}",
        estimate=estimate,
        verdict=answer.verdict,
        reason=answer.reason or change(answer),
        records=tuple(pair.trial for pair in answer.pairs),
        facts={
            "about": "quantity",
            "quantity": answer.question.quantity,
            "higher_is_better": answer.question.higher_is_better,
        },
    )
