"""Slurm's own commands, asked for one answer each."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass

from assay.core.errors import MachineCannot
from assay.core.lifeline import die_with_parent

ANSWER_WITHIN_S = 60.0
FILTERS = ("SQUEUE_", "SINFO_", "SCANCEL_")
"""Variables by which users narrow what Slurm's commands show them; we look for what we look for."""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """The reason of a refusal, in Slurm's words on one line."""
        lines = [line.partition("error: ")[2] or line for line in self.err.splitlines() if line.strip()]
        return "; ".join(line.strip().rstrip(".") for line in lines) or f"exit code {self.code}"


def ask(*words: str, conf: str | None = None) -> Said:
    """Run a command and return its answer.

    A signal that stops us meanwhile is heeded after the answer: what was asked for is then known to be there or not.

    Raises:
        MachineCannot: The command is not here.
    """
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment(conf),
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - no threads here; a late job would be nobody's
        )
    except OSError as error:
        raise MachineCannot(f"Slurm's {words[0]} cannot be started: {error.strerror or error}.") from error
    try:
        out, err = process.communicate(timeout=ANSWER_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Said(-1, "", f"no answer within {ANSWER_WITHIN_S:.0f} s")
    except BaseException:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=ANSWER_WITHIN_S)
        process.kill()
        raise
    return Said(process.returncode, out, err)


def environment(conf: str | None = None) -> dict[str, str]:
    """Return our environment without what belongs to an allocation around us, or narrows what is shown."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FILTERS) and (not name.startswith("SLURM_") or name == "SLURM_CONF")
    }
    return {**variables, "SLURM_CONF": conf} if conf else variables
