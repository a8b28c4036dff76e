"""Tuners in a trial, with real workers: under its schedule, after its times, and without harm where they fail."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from assay.core.values import Adaptive, Command, Counted, Role, Subject, Trial, Tuner
from assay.workloads import registry
from tests.running import function, quickly, role, survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Measure

PICK = Tuner(name="pick", budget_s=0.5)
SOFTMAX = registry.resolve_subject("softmax@numpy", device_kind="cpu", explicit={"rows": "64", "cols": "128"})


def tuning(name: str, subject: Subject = SOFTMAX, *, tuner: Tuner = PICK, device: str = "cpu:0") -> Role:
    return role(name, subject, device=device).model_copy(update={"tuner": tuner})


def by_command(program: str, budget_s: float = 0.1) -> Tuner:
    argv = (sys.executable, "-c", program, "{output}")
    return Tuner(name="command", budget_s=budget_s, command=Command(argv=argv))


@pytest.mark.full
def test_tuners_together_start_at_one_moment_and_each_tells_what_it_tried(measure: Measure) -> None:
    roles = [tuning(device, device=device) for device in ("cpu:0", "cpu:1")]
    outcome = measure(*roles, schedule="together")
    assert outcome.status == "ok", outcome.reason
    assert [each.role for each in outcome.tunings] == ["cpu:0", "cpu:1"]
    configs = list(registry.find_workload("softmax", "numpy").configs(SOFTMAX.params))
    for each in outcome.tunings:
        assert (each.restart, each.subject, each.tuner, each.reason) == (0, 0, "pick", None)
        assert each.config in configs
        assert len(each.tried) == len(configs)
        assert each.tuning_s > 0
    first, second = outcome.tunings
    assert max(first.start_ns, second.start_ns) < min(first.end_ns, second.end_ns)
    assert all(series.end_ns <= first.start_ns for series in outcome.series)
    assert all(e.load_calls is not None and e.load_calls > 0 for e in outcome.evidence)


@pytest.mark.full
def test_tuners_alone_run_one_after_another(measure: Measure) -> None:
    outcome = measure(tuning("a"), tuning("b"))
    assert outcome.status == "ok", outcome.reason
    first, second = outcome.tunings
    assert (first.role, second.role) == ("a", "b")
    assert first.end_ns <= second.start_ns
    assert all(e.load_calls is None for e in outcome.evidence)


@pytest.mark.full
def test_who_has_no_tuner_keeps_the_others_company(measure: Measure) -> None:
    outcome = measure(tuning("a"), role("plain", function("fine")), schedule="together")
    assert outcome.status == "ok", outcome.reason
    (found,) = outcome.tunings
    load = next(e for e in outcome.evidence if e.role == "plain")
    assert load.load_s is not None
    assert load.load_s > (found.end_ns - found.start_ns) / 1e9


WRITES = """
import json, sys
found = {"kernel_name": "mine", "best_config": {"block": 64}, "best_time_ms": 0.25, "all_benchmark_times": [0.25],
         "num_configs_tested": 1, "autotune_duration_seconds": 1.5}
open(sys.argv[1], "w").write(json.dumps(found))
"""


@pytest.mark.full
def test_a_command_tunes_anything_and_does_so_in_every_restart(measure: Measure, workplace: Path) -> None:
    method = quickly(Counted, runs=5)
    outcome = measure(tuning("a", function("fine"), tuner=by_command(WRITES)), restarts=2, mode=method)
    assert outcome.status == "ok", outcome.reason
    found, again = outcome.tunings
    assert (found.restart, again.restart) == (0, 1)
    assert (found.config, found.time_us, found.tuning_s, found.tuner) == ({"block": 64}, 250.0, 1.5, "command")
    assert list((workplace / "scratch").iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("subject", "tuner", "reason"),
    [
        (function("fine"), PICK, "bad.py:fine has no configurations to choose from"),
        (function("fine"), by_command("import sys; sys.exit(3)"), "the tuner's command exited with 3"),
    ],
)
def test_a_tuner_that_finds_nothing_says_why_and_the_trial_goes_on(
    measure: Measure, subject: Subject, tuner: Tuner, reason: str
) -> None:
    outcome = measure(tuning("a", subject, tuner=tuner))
    assert outcome.status == "ok", outcome.reason
    (found,) = outcome.tunings
    assert (found.config, found.time_us, found.reason) == (None, None, reason)
    assert outcome.series


def test_a_tuner_that_never_ends_is_interrupted_with_all_it_started(measure: Measure, assay_home: Path) -> None:
    endless = by_command("import time; time.sleep(1000)")
    outcome = measure(tuning("a", tuner=endless), mode=quickly(duration_s=0.2, timeout_s=5.0))
    assert outcome.status == "ok", outcome.reason
    assert outcome.tunings[0].reason == "the tuner's command has not returned within 4.6 s"
    wait_for(lambda: not survivors(assay_home))


@pytest.mark.full
def test_a_tuner_that_takes_the_worker_with_it_fails_the_trial_and_leaves_the_others_found(measure: Measure) -> None:
    deadly = by_command(f"import os; os.kill(os.getppid(), {signal.SIGKILL:d})")
    outcome = measure(tuning("good"), tuning("bad", tuner=deadly), schedule="together")
    assert outcome.status == "failed"
    assert outcome.reason is not None
    assert outcome.reason.startswith("bad: the worker died of SIGKILL")
    assert [each.role for each in outcome.tunings] == ["good"]


def test_a_tuner_has_no_turns() -> None:
    with pytest.raises(ValueError, match="so none has its turn"):
        Trial(block="b", roles=(tuning("a"), tuning("b")), schedule="turns", mode=Adaptive(duration_s=1))


def test_a_device_has_as_many_workers_as_its_roles_number_or_it_is_placed_with() -> None:
    roles = (tuning("a"), tuning("b").model_copy(update={"worker": 2}))
    trial = Trial(block="b", roles=roles, mode=Adaptive(duration_s=1), placed_with=("cpu:1", "cpu:1", "host"))
    assert trial.workers == {"cpu:1": 2, "host": 1, "cpu:0": 3}
