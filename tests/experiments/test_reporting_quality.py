"""The first lines of every page: which trials were disturbed and by whom, and which isolation held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.core.results import Disturbance, Evidence, Interference, IsolationLimit, Record, Window
from assay.experiments.reporting import assess_quality, disturbance_text, quality_lines

if TYPE_CHECKING:
    from assay.core.values import Isolation

LOOKED = Disturbance(observed_s=1.0, steal_share=0.0, outside_cores=0.0, unseen_cores=0.0)
STOLEN = Interference(kind="hypervisor", source="the hypervisor", amount=3.21, unit="%", message="stolen")
ON_GPU = Interference(kind="gpu_processes", source="train on the GPU", message="others are there")


def by(name: str, cores: float) -> Interference:
    return Interference(kind="processes", source=name, amount=cores, unit="cores", message=f"{name} was busy")


def record(*disturbed: Interference, **changes: Any) -> Record:
    window = Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="2025-01-01T00:00:00Z")
    made = Record(trial="t", block="b", attempt=1, window=window, status="ok", disturbance=LOOKED, disturbed=disturbed)
    return made.model_copy(update=changes)


def lines(*records: Record) -> list[tuple[str, str]]:
    return [(line.text, line.tone) for line in quality_lines(assess_quality(records))]


def test_disturbed_trials_are_counted_and_the_source_is_named_with_its_most() -> None:
    trials = [record(by("ffmpeg", 1.1)), record(by("ffmpeg", 1.4)), *[record()] * 10]
    assert lines(*trials) == [("2 of 12 trials disturbed: ffmpeg (1.4 cores).", "unsure")]
    (source,) = assess_quality(trials).sources
    assert (source.kind, source.trials, source.amount) == ("processes", 2, 1.4)


def test_of_several_sources_the_most_frequent_comes_first_with_its_trials() -> None:
    trials = [record(by("ffmpeg", 1.4), STOLEN), record(STOLEN), *[record()] * 3]
    assert lines(*trials) == [
        ("2 of 5 trials disturbed: the hypervisor (3.2 %), ffmpeg (1.4 cores, 1 trial).", "unsure")
    ]


def test_a_source_that_two_watchers_saw_in_one_trial_disturbed_it_once() -> None:
    assert assess_quality([record(STOLEN, STOLEN.model_copy(update={"amount": 9.0}))]).sources[0].trials == 1
    assert disturbance_text(assess_quality([record(ON_GPU)])) == "1 of 1 trial disturbed: train on the GPU"


def test_more_sources_than_fit_a_line_are_counted() -> None:
    several = [by(f"p{n}", 1.0) for n in range(5)]
    assert lines(record(*several), record())[0][0].endswith("p2 (1.0 cores), 2 more.")


def test_where_most_trials_are_disturbed_the_line_says_what_to_do() -> None:
    assert lines(record(STOLEN))[0][0].endswith("; `--on-interference wait` waits for a quiet machine.")


def test_a_quiet_run_says_so_and_one_that_nobody_watched_says_nothing() -> None:
    assert lines(record(), record()) == [("No interference detected in 2 trials.", "plain")]
    assert lines(record()) == [("No interference detected in the trial.", "plain")]
    assert lines(record(disturbance=None)) == []
    assert lines() == []


def test_trials_without_a_result_are_not_counted() -> None:
    refused = record(status="refused", reason="others are busy")
    assert assess_quality([refused, record()]).trials == 1


def test_trials_measured_again_are_counted() -> None:
    assert lines(record(take=2), record()) == [("No interference detected in 2 trials; 1 measured again.", "plain")]


@pytest.mark.parametrize("held", ["none", "gpu"])
def test_isolation_that_did_not_hold_is_told_with_its_reason(held: Isolation) -> None:
    shared = IsolationLimit(code="shared_cores", level=held, message="cpu:0 shared core 0 with cpu:2")
    worker = Evidence(
        role="cpu:0", rank=0, restart=0, pid=1, device="cpu:0", isolation_asked="full", isolation_held=held,
        isolation_limits=(shared,), allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=0.1,
    )  # fmt: skip
    good = worker.model_copy(update={"isolation_held": "full", "isolation_limits": ()})
    trials = [record(evidence=(worker, good)), record(evidence=(good,))]
    said = f"Isolation full did not hold in 1 of 2 trials ({held} held): cpu:0 shared core 0 with cpu:2."
    assert lines(*trials) == [("No interference detected in 2 trials.", "plain"), (said, "unsure")]
    (short,) = assess_quality(trials).isolation
    assert (short.requested, short.held, short.codes) == ("full", held, ("shared_cores",))
