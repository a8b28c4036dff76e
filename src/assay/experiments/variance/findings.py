"""What the comparison comes to: judged claims, and all of it in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Finding, Findings
from assay.experiments.shares import share_estimate
from assay.experiments.wide import tells_nothing

if TYPE_CHECKING:
    from assay.core.results import Estimate, Verdict
    from assay.experiments.variance.compare import Kernel
    from assay.stats.shares import Share


def analyse(kernels: tuple[Kernel, ...], minimum_effect: float) -> Findings:
    """Return the findings of all kernels."""
    findings = [finding for kernel in kernels for finding in _findings(kernel, minimum_effect)]
    return Findings(headline=headline(kernels, minimum_effect), findings=tuple(findings))


def _findings(kernel: Kernel, minimum_effect: float) -> list[Finding]:
    name, findings = kernel.name, []
    times = kernel.times.ratio
    if times is not None:
        findings.append(
            _finding(f"{name}: the best time is longer than the baseline's", times, name, "time", minimum_effect)
        )
    for scatter, of in ((kernel.spreads.ratio, "repeats"), (kernel.spreads.samples_ratio, "samples")):
        if scatter is not None:
            findings.append(
                _finding(f"{name}: {of} scatter more than the baseline's", scatter, name, of, minimum_effect)
            )
    share = share_estimate(kernel.picks.mismatch, "picks that differ from the baseline's")
    if share is not None:
        findings.append(
            Finding(
                claim=f"{name}: another configuration is picked than in the baseline",
                estimate=share,
                verdict=mismatch_verdict(*kernel.picks.shares),
                reason=mismatch_reason(*kernel.picks.shares),
                records=(),
                facts={
                    "kernel": name,
                    "what": "picks",
                    "differ": kernel.picks.mismatch.count,
                    "of": kernel.picks.mismatch.n,
                    "baseline_differs": kernel.picks.by_chance.count,
                    "baseline_of": kernel.picks.by_chance.n,
                    "settings": ", ".join(dict.fromkeys(s for d in kernel.picks.devices for s in d.differ)) or None,
                },
            )
        )
    return findings


def _finding(claim: str, ratio: Estimate, kernel: str, what: str, minimum_effect: float) -> Finding:
    facts = {"kernel": kernel, "what": what}
    return Finding(claim=claim, estimate=ratio, verdict=verdict(ratio, minimum_effect), records=(), facts=facts)


def verdict(ratio: Estimate | None, minimum_effect: float) -> Verdict:
    """Return whether a ratio surely is larger than 1 by more than the minimum effect."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "unsure"
    if ratio.low > 1 + minimum_effect:
        return "yes"
    return "no" if ratio.high <= 1 + minimum_effect else "unsure"


def mismatch_verdict(share: Share, chance: Share) -> Verdict:
    """Return whether picks surely differ more often than those of the baseline do among themselves."""
    ours, theirs = share.interval(), chance.interval()
    if ours is None or theirs is None:
        return "unsure"
    if ours[0] > theirs[1]:
        return "yes"
    return "no" if ours[1] <= theirs[0] or not share.count else "unsure"


def mismatch_reason(share: Share, chance: Share) -> str:
    """Write how often picks differ, and how often they do by themselves."""
    text = f"{share.count} of {share.n} differ from the baseline"
    if not chance.n:
        return f"{text}; how often the baseline differs from itself is not known without repeats of it"
    return f"{text}; among themselves {chance.count} of {chance.n} of the baseline do"


def headline(kernels: tuple[Kernel, ...], minimum_effect: float) -> str:
    """Return in one sentence what changed."""
    parts = [_told(kernel, minimum_effect) for kernel in kernels[:3]]
    more = f"; and {len(kernels) - 3} more kernel{'' if len(kernels) == 4 else 's'}" if len(kernels) > 3 else ""
    return f"{'; '.join(parts)}{more}."


def _told(kernel: Kernel, minimum_effect: float) -> str:
    ratio, picks = kernel.times.ratio, kernel.picks.mismatch
    text = f"{kernel.name} {time_text(ratio, minimum_effect)}"
    return f"{text}, and {picks.count} of {picks.n} picks differ" if picks.n else text


def time_text(ratio: Estimate | None, minimum_effect: float) -> str:
    """Write how a time compares."""
    if ratio is None:
        return "has no times to compare"
    if ratio.low is None or ratio.high is None:
        return f"takes {ratio.value:.3f}× as long as the baseline, of which too few results say how sure that is"
    if tells_nothing(ratio.low, ratio.high):
        return f"takes {ratio.value:.3f}× as long as the baseline, or any: there are too few results to say"
    interval = f"{ratio.value:.3f}× [{ratio.low:.3f}, {ratio.high:.3f}]"
    if ratio.low > 1 + minimum_effect:
        return f"takes longer than the baseline, {interval}"
    if ratio.high < 1 / (1 + minimum_effect):
        return f"takes less time than the baseline, {interval}"
    return f"shows no sure difference in time beyond {100 * minimum_effect:g} %, {interval}"
