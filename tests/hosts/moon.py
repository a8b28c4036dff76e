"""A host that rents: what it has stands in a file, what it did in another, and what it measures was measured before.

``MOON_FOLDER`` names a folder with ``offers.json`` and ``canned``, a folder of runs; ``MOON_KEY`` is its credential.
After `entry_point` it is behind ``--on moon``, in other processes too.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.hosts.base import JobEnd, JobProgress, Offer, Rental
from assay.hosts.rented.provider import NoCapacity

if TYPE_CHECKING:
    from assay.hosts.base import Job, JobWatcher


class Moon:
    """Rents, gives back what is there, and writes down what it was asked."""

    name = "moon"
    options = frozenset({"gpu_type", "image", "max_cost", "ship", "time", "remote_python"})

    @property
    def folder(self) -> Path:
        return Path(os.environ["MOON_FOLDER"])

    def did(self, what: str) -> None:
        with (self.folder / "did").open("a") as file:
            file.write(f"{what}\n")

    def available(self) -> str | None:
        return None if os.environ.get("MOON_KEY") else "MOON_KEY is not set; make one on the moon's own page"

    def offers(self) -> tuple[Offer, ...]:
        found = json.loads((self.folder / "offers.json").read_text())
        if not found:
            raise MachineCannot("The moon does not answer.")
        return tuple(
            Offer.model_validate({"host": self.name, "gpu_count": 1, "name": each["gpu"], **each}) for each in found
        )

    def script(self, order: Job) -> str:
        return ""

    def create(self, order: Job) -> Rental:
        assert order.offer is not None
        if order.offer.name.startswith("full"):
            raise NoCapacity(f"The moon has no {order.offer.name} free now.")
        limit = None if order.limit_s is None else round(order.limit_s)
        self.did(f"create {order.offer.name} gpu={order.gpu} limit={limit} most={order.max_cost_usd}")
        return Rental(host=self.name, name=order.name, number=order.offer.name)

    def run(self, loan: Rental, order: Job, watcher: JobWatcher) -> JobEnd:
        watcher.progress(JobProgress(state="runs", what=f"{loan.number} is up."))
        if "waits" in loan.number:
            time.sleep(60)
        if "taken" in loan.number:
            raise NoCapacity("The machine was taken away, and no other is free.")
        if "broken" in loan.number:
            return JobEnd(exit_code=4, reason="The machine broke down")
        watcher.out(" ".join(order.words).encode())
        shutil.copytree(self.folder / "canned", self.folder / order.id)
        return JobEnd(exit_code=0)

    def collect(self, loan: Rental, order: Job) -> tuple[Path, ...]:
        here = Path(order.output_dir)
        here.mkdir(parents=True, exist_ok=True)
        runs = [path for path in (self.folder / order.id).glob("*") if not path.is_symlink()]
        return tuple(Path(shutil.move(path, here)) for path in runs)

    def release(self, loan: Rental) -> None:
        self.did(f"release {loan.number}")

    def list_ours(self) -> tuple[Rental, ...]:
        return ()


HOST = Moon()


def entry_point(folder: Path) -> None:
    """Install the host in a folder that is to be on the path."""
    info = folder / "moon-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[assay.hosts]\nmoon = tests.hosts.moon:HOST\n")
