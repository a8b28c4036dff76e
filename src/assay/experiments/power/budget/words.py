"""How a budget is told: the headline, the commands, and what each GPU gets."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.experiments.power.budget.plan import Plan, Share, Sure


def percent(sure: Sure) -> str:
    """Write a share with its interval: ``3.2 % (2.9 – 3.5)``."""
    if sure.low is None or sure.high is None:
        return f"{100 * sure.value:z.1f} %".replace("-", "−")
    return f"{100 * sure.value:z.1f} % ({100 * sure.low:z.1f} – {100 * sure.high:z.1f})".replace("-", "−")


def headline(plan: Plan) -> str:
    """Return the answer in a sentence or two."""
    gpus = f"{len(plan.shares)} GPU{'' if len(plan.shares) == 1 else 's'}"
    left = f"{plan.watts - plan.overhead_w:g} W"
    if not plan.binds:
        return f"{left} do not bind: {gpus} need no more than {plan.needed_w:.0f} W together; no cap is needed."
    lost = f"Under {left} the best caps for {gpus} lose {percent(plan.loss)} of the work they do without caps"
    if plan.loss.low is None:
        lost += " (how surely is not known: nothing was measured twice)"
    if plan.against_equal is None:
        return f"{lost}; an equal split would put some below the lowest cap that was measured."
    gain = plan.against_equal
    if gain.value < 5e-4:
        return f"{lost}; an equal split does as well."
    return f"{lost}, and do {percent(gain)} more than an equal split."


def commands(plan: Plan) -> Iterator[tuple[str, str]]:
    """Give the host and the command that would set each cap; nobody runs them here."""
    if plan.binds:
        for share in plan.shares:
            yield share.curve.card.host, f"nvidia-smi -i {share.curve.card.uuid} -pl {share.cap_w:.0f}"


def script(plan: Plan) -> str:
    """Return the commands as text, host by host."""
    parts = groupby(commands(plan), key=lambda host_command: host_command[0])
    return "\n".join(f"# on {host}\n" + "\n".join(line for _, line in lines) for host, lines in parts)


def name(share: Share, *, hosts: bool) -> str:
    """Return how a GPU is called."""
    card = share.curve.card
    return f"{card.host} GPU {card.slot}" if hosts else f"GPU {card.slot}"


def source(share: Share) -> str:
    """Say whose curve it is."""
    curve = share.curve
    if curve.own:
        return "own"
    return f"middle of {curve.of} of its model" if curve.of > 1 else "of another of its model"
