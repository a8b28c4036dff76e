"""Which GPU was measured where: from the run folders of a fleet, by UUID."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from assay.core.durable import read_lines
from assay.core.errors import BadInput, DamagedFile
from assay.experiments.power.rows import GPUS_FILE
from assay.hosts.fleet.model import Card, Seen
from assay.store.runs import RunFolder
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from pathlib import Path

    from assay.hosts.fleet.model import Fleet
    from assay.machine.model import Gpu


def gathered(fleet: Fleet, folder: Path) -> Fleet:
    """Return the fleet with every GPU that its runs have measured; runs that cannot be read have none."""
    cards: dict[str, Card] = {}
    for post in fleet.posts:
        if post.run is None:
            continue
        try:
            run = RunFolder.open(folder / post.run)
            gpus = measured(run)
        except BadInput:
            continue
        origin = "fake" if run.machine.has_fake_driver else "real"
        for gpu in gpus:
            here = Seen(node=post.node, run=post.run)
            card = cards.get(gpu.uuid) or Card(uuid=gpu.uuid, model=gpu.name, origin=origin, seen=(here,))
            if here not in card.seen:
                card = card.model_copy(update={"seen": (*card.seen, here)})
            cards[gpu.uuid] = card
    return fleet.model_copy(update={"gpus": tuple(cards.values())})


def measured(run: RunFolder) -> list[Gpu]:
    """Return the GPUs of a run: those its rows are about, else those that were there once anything was measured.

    Raises:
        BadInput: The rows cannot be read.
    """
    verify_file(run.path / GPUS_FILE)
    try:
        uuids = {json.loads(line)["uuid"] for line in read_lines(run.path / GPUS_FILE)}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadInput(f"{run.path / GPUS_FILE} holds a line that Assay does not write: {error}.") from None
    if uuids:
        return [gpu for gpu in run.machine.gpus if uuids & {gpu.uuid, *(instance.uuid for instance in gpu.instances)}]
    return list(run.machine.gpus) if begun(run.path) else []


def begun(run: Path) -> bool:
    """Return whether a run folder holds a record."""
    return bool(read_lines(run / "records.jsonl"))


def failures(run: Path) -> str | None:
    """Say how many trials of a run failed, and why the first of them; null where none did, or it cannot be read."""
    try:
        failed = [record for record in RunFolder.open(run).counting() if record.status == "failed"]
    except DamagedFile as error:
        return str(error).rstrip(".")
    except BadInput:
        return None
    if not failed:
        return None
    several = "a trial" if len(failed) == 1 else f"{len(failed)} trials"
    return f"{several} failed: {failed[0].reason or 'no reason was given'}"
