"""What is published follows from the samples that are kept."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = (ROOT / "docs/evidence.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "command",
    [
        ("evidence.py", "verify", "run"),
        ("startup.py", "verify"),
        ("stats.py", "verify"),
        ("clock.py", "verify"),
        ("pick.py", "verify"),
        ("evidence.py", "verify", "contention"),
        ("evidence.py", "verify", "contention_helion"),
        ("evidence.py", "verify", "matrix"),
        ("tuners.py", "verify"),
        ("contention.py", "verify"),
        ("demo.py", "verify"),
        ("attention.py", "verify"),
        ("evidence.py", "verify", "scaling"),
        ("evidence.py", "verify", "prediction"),
        ("fleet.py", "verify"),
        ("power_gpu.py", "verify"),
        ("restore.py", "verify"),
        ("rentals.py", "verify"),
        ("remote.py", "verify"),
        ("evidence.py", "verify", "threshold"),
        ("evidence.py", "verify", "threshold_again"),
        ("decisions.py", "verify"),
        ("history.py", "verify"),
        ("tokens.py", "verify"),
        ("hostile_input.py", "verify"),
        ("damaged_folders.py", "verify"),
        ("self_comparison.py", "verify"),
        ("stop_signals.py", "verify"),
        ("time_coverage.py", "verify"),
        ("mutants.py", "verify"),
    ],
    ids=" ".join,
)
def test_the_published_tables_follow_from_the_kept_samples(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = str(ROOT / "benchmarks" / command[0])
    monkeypatch.setattr(sys, "argv", [program, *command[1:]])
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which it adds
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(program, run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert printed.strip()
    for line in printed.strip().splitlines():
        assert line in DOCUMENT


def test_help_starts_within_eight_times_the_bare_interpreter() -> None:
    import json
    import statistics

    samples = json.loads((ROOT / "benchmarks/results/startup.json").read_text())["samples"]
    bare = statistics.median(samples["python -c pass"])
    assert statistics.median(samples["assay --help"]) <= 8 * bare
