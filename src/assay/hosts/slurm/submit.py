"""Hand a script to Slurm, once: an answer that never came is looked for by the job's name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.hosts.slurm import queue
from assay.hosts.slurm.commands import ask
from assay.hosts.slurm.watch import look

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.leases import Lease
    from assay.hosts.base import Offer, Order

UNANSWERED = ("timed out", "Unable to contact", "Zero Bytes", "no answer")
_BAD_OPTIONS = ("unrecognized option", "invalid option", "ambiguous", "Invalid --", "requires an argument")


def lease_for(order: Order, what: str) -> Lease:
    """Write down that all of an order's name is to be cancelled, before it is sent."""
    return leases.take(
        "slurm",
        f"{what} {order.name}",
        "assay.hosts.slurm.undo:cancel",
        {"name": order.name, "conf": os.environ.get("SLURM_CONF")},
        lease_id=order.id,
    )


def submit(order: Order, options: list[str], script: Path, lease: Lease) -> str:
    """Return the job's number; where the answer never came, that of the job that is there all the same."""
    result = ask("sbatch", "--parsable", *options, str(script))
    if result.code == 0:
        return result.out.strip().partition(";")[0]
    if any(word in result.err for word in UNANSWERED):
        entries = look(order.name)
        if entries:
            return entries[0].number.partition("_")[0]
        raise MachineCannot(f"Slurm did not answer: {result.why}.")
    leases.forget(lease)
    if any(word in result.err for word in _BAD_OPTIONS):
        raise BadInput(f"sbatch cannot read its options: {result.why}.")
    raise MachineCannot(f"Slurm refuses the job: {result.why}.{partitions_up()}")


def offers() -> tuple[Offer, ...]:
    """Return the partitions that are up."""
    result = ask("sinfo", "--noheader", f"--format={queue.PARTITION_FORMAT}")
    if result.code != 0:
        raise MachineCannot(f"Slurm does not answer: {result.why}.")
    return queue.offers(result.out)


def partitions_up() -> str:
    """Name the partitions that are up in a sentence; nothing where Slurm does not say."""
    try:
        names = dict.fromkeys(offer.name for offer in offers())
    except MachineCannot:
        return ""
    return f" Partitions that are up: {', '.join(names)}." if names else ""
