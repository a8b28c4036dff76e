"""asv and Apache Otava, each in an environment of its own, asked about the same series as Assay."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.decisions_oracles import SILENT

if TYPE_CHECKING:
    from benchmarks.decisions_noise import History

PACKAGES = {"asv": "asv==0.6.6", "otava": "apache-otava==0.8.0"}
NAMES = {"asv": "asv 0.6.6", "otava": "Apache Otava 0.8.0"}
BY_HOST = ", each host by itself"
ASKED = Path(__file__).parent / "decisions_asked.py"


@dataclass(frozen=True)
class Rival:
    """A tool, and the Python of its environment."""

    name: str
    python: Path

    @classmethod
    def within(cls, folder: Path, name: str) -> Rival:
        """Return a tool whose environment is in a folder; it is made where it is not there yet."""
        home = folder / f"v{name}"
        python = home / "bin" / "python"
        if not python.exists():
            venv.create(home, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGES[name]], check=True)
        return cls(name, python)

    def alarms(self, history: History, *, first: int = SILENT, by_host: bool = False) -> list[list[int]]:
        """Return for each series the runs, from the first that is asked about on, after which it shows a slow-down."""
        requests = {
            "series": np.exp(history.logs).tolist(),
            "hosts": history.hosts.tolist() if by_host else None,
            "from": first,
        }
        done = subprocess.run(
            [self.python, ASKED, self.name], input=json.dumps(requests), capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.stderr.write(done.stderr)
            raise RuntimeError(f"{self.name} ended with status {done.returncode}")
        answer: dict[str, Any] = json.loads(done.stdout)
        if answer["version"] != PACKAGES[self.name].partition("==")[2]:
            raise RuntimeError(f"{self.name} is of version {answer['version']}, not {PACKAGES[self.name]}")
        return list(answer["told"])
