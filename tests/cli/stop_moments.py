"""Commands that are sent a signal at some moment: how they end, and what is left of them.

Used by the suite for a few moments and by ``benchmarks/stop_signals.py`` for two hundred.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.core.errors import BadInput
from assay.store.run_folder import RunFolder, run_paths
from tests.fakes.fake_nvml import FakeNvml, hopper
from tests.running import survivors
from tests.workloads.openai_server import FakeServer, Talk

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Verb = Literal["run", "contention", "energy", "threshold", "scaling"]
VERBS: tuple[Verb, ...] = ("run", "contention", "energy", "threshold", "scaling")
Outcome = Literal["stopped", "finished", "not yet started", "wrong"]

MINE = """
import time

def fine():
    return sum(range(1000))

def plain(n):
    time.sleep(1e-4 * n)
    return n

def fast(n):
    time.sleep(1e-4 if n == 1 else 2e-5 * n)
    return n

def ranks():
    time.sleep(0.01)
"""
THRESHOLDS = """
thresholds:
  - {name: naps, reference: "mine.py:plain", fast: "mine.py:fast", axes: {n: [1, 2, 4]}, size: n, key: runtime.min_len,
     never: 1000000000}
"""
SERVED = """
backend: {{type: openai, model: tiny, endpoint: "{url}", device_ids: [0]}}
scenario: {{input_tokens: 16, output_tokens: 8, concurrency: 2, repeats: 1, window_s: 2.2, precision: 0.5}}
reporter: {{type: csv, output_file: all.csv}}
"""
WORDS: dict[Verb, tuple[str, ...]] = {
    "run": ("run", "mine.py:fine", "--device", "cpu:0", "--duration", "0.5", "--restarts", "1", "--repeat", "2"),
    "contention": (
        *("contention", "run", "--benchmark", "softmax@numpy", "--param", "rows=64", "--param", "cols=256"),
        *("--device", "cpu:0", "--repeat", "1", "--budget", "1", "--workers-per-device", "2"),
    ),
    "energy": ("energy", "run", "served.yaml"),
    "threshold": ("threshold", "run", "thresholds.yaml", "--device", "cpu", "--quick", "--isolation", "none"),
    "scaling": (
        *("scaling", "run", "--workload", "mine.py:ranks", "--nproc", "2", "--repeat", "2"),
        *("--benchmark_runs", "6"),
    ),
}
GONE_WITHIN_S = 60.0


@dataclass(frozen=True)
class Stop:
    """What one signal came to. ``exit_s`` and ``gone_s`` count from the signal: until the command had ended, and until
    nothing was left of it. ``resumed`` is the exit code of `assay resume`; null: not tried, or there is no run."""

    verb: Verb
    sent: str
    at_s: float
    code: int
    outcome: Outcome
    exit_s: float
    gone_s: float
    processes: int
    leases: int
    files: tuple[str, ...]
    load: float
    last_words: str
    resumed: int | None = None

    @property
    def good(self) -> bool:
        """Whether it ended as it should and nothing is left."""
        clean = (self.processes, self.leases, self.files) == (0, 0, ())
        return clean and self.outcome != "wrong" and self.resumed in {None, 0}


@contextlib.contextmanager
def workplace_for(verb: Verb, folder: Path) -> Iterator[dict[str, str]]:
    """Give the environment in which a command finds what it needs, in a folder of its own."""
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "thresholds.yaml").write_text(THRESHOLDS)
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    environment = {**os.environ, "ASSAY_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    if verb != "energy":
        yield environment
        return
    fake = FakeNvml.create(folder / "scenario.nvml", [hopper()], virtual=False)
    server = FakeServer()
    server.answer = slowly
    try:
        (folder / "served.yaml").write_text(SERVED.format(url=server.url))
        yield {**environment, **fake.env()}
    finally:
        server.close()


def slowly(talk: Talk) -> None:
    """Answer a token at a time."""
    talk.role()
    for _ in range(talk.asked):
        time.sleep(0.01)  # it stands for the work of a model
        talk.token()
    talk.finish()
    if talk.body.get("stream_options"):
        talk.event(choices=[], **talk.usage)
    talk.done()


def start(words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command line; what it says on stderr is kept in a file."""
    with (folder / "stderr").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "assay", *words],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )


def undisturbed_s(verb: Verb, folder: Path) -> float:
    """Return how long a command takes that nobody disturbs."""
    with workplace_for(verb, folder) as environment:
        begin_s = time.monotonic()
        code = start(WORDS[verb], folder, environment).wait()
        took_s = time.monotonic() - begin_s
        assert code == 0, (folder / "stderr").read_text()
        return took_s


def stopped(verb: Verb, sent: signal.Signals, at_s: float, folder: Path, *, resume: bool = False) -> Stop:
    """Send a signal to a command so long after its start, and look how it ends and what is left."""
    with workplace_for(verb, folder) as environment:
        process = start(WORDS[verb], folder, environment)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(at_s)
        begin_s = time.monotonic()
        process.send_signal(sent)
        code = process.wait()
        exit_s = time.monotonic() - begin_s
        home = folder / "home"
        while (survivors(home) or leases_in(home)) and time.monotonic() - begin_s < GONE_WITHIN_S:
            time.sleep(0.02)
        gone_s = time.monotonic() - begin_s
        said = (folder / "stderr").read_text()
        found = Stop(
            verb,
            sent.name,
            round(at_s, 3),
            code,
            outcome_of(code, sent, said, folder),
            round(exit_s, 3),
            round(gone_s, 3),
            len(survivors(home)),
            len(leases_in(home)),
            half_written(folder),
            round(os.getloadavg()[0], 1),
            said.strip().splitlines()[-1] if said.strip() else "",
        )
        if not resume or found.outcome != "stopped" or not run_paths(folder / "runs"):
            return found
        resumed = start(("resume", "runs/latest"), folder, environment).wait()
        return Stop(**{**vars(found), "resumed": resumed})


def outcome_of(code: int, sent: signal.Signals, said: str, folder: Path) -> Outcome:
    """Return how a command ended; death by the signal is right only before Assay has touched anything."""
    if code == 4 and f"Stopped by {sent.name}" in said and "Traceback" not in said:
        return "stopped"
    if code == 0 and any((run / "findings.json").is_file() for run in run_paths(folder / "runs")):
        return "finished"
    untouched = not (folder / "runs").exists() and not any((folder / "home").iterdir())
    if untouched and "assay:" not in said and (code == -sent or "KeyboardInterrupt" in said):
        return "not yet started"
    return "wrong"


def leases_in(home: Path) -> list[Path]:
    """Return the leases of a home."""
    return sorted((home / "leases").glob("*.json"))


def half_written(folder: Path) -> tuple[str, ...]:
    """Return the files that should not be there: temporary ones, and those of runs that cannot be read."""
    left = [path for path in folder.rglob(".*") if path.name.endswith(".tmp") or path.name.startswith(".latest-")]
    left += [path for path in (folder / "tmp").iterdir() if "matplotlib" not in path.name]
    left += (folder / "runs").glob("*/scratch/*")
    for run in (folder / "runs").glob("*"):
        try:
            RunFolder.open(run).records()
            for path in run.glob("*.json"):
                json.loads(path.read_text())
        except (BadInput, ValueError):
            left.append(run)
    return tuple(sorted(str(path.relative_to(folder)) for path in left))
