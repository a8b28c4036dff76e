"""Findings of the plain experiment at the edges: which records count, how sure a time is, and the sentence about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.results import Estimate, Evidence, Finding, Findings, Record, Series, SubjectFacts, Window
from assay.core.values import Command, Subject
from assay.experiments.run import report
from assay.experiments.run.plan import RunOptions, repeat_trials
from assay.experiments.run.report import build_findings, collect_results, samples_by_process
from tests.experiments.remembered import Remembered

if TYPE_CHECKING:
    from assay.core.values import Trial
    from assay.stats.intervals import Samples

SOFTMAX, GEMM = (Subject(workload=name, impl="numpy") for name in ("softmax", "gemm"))


def options(**changes: Any) -> RunOptions:
    told = {"subjects": (SOFTMAX,), "devices": ("cpu:0",), "precision": 0.0625}
    return RunOptions.model_validate({**told, **changes})


def analyse(wanted: RunOptions, records: Remembered) -> Findings:
    return build_findings(wanted, collect_results(wanted, records), records)


class World:
    """Records that are made one by one; their samples are in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.kept: dict[str, Samples] = {}

    def add(self, trial: Trial, *taken: tuple[str, str, int, list[float]], **changes: Any) -> None:
        """Add a record of a trial, with samples as (role, quantity, restart, values)."""
        series = []
        for rank, (role, quantity, restart, values) in enumerate(taken):
            file = f"{len(self.records)}-{rank}"
            self.kept[file] = np.array(values)
            series.append(
                Series(
                    role=role, rank=rank, subject=0, restart=restart, quantity=quantity, unit="µs", file=file,
                    n=len(values), start_ns=0, end_ns=1,
                )
            )  # fmt: skip
        told = {
            "trial": trial.id, "block": trial.block, "attempt": 1, "status": "ok", "series": tuple(series),
            "window": Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="then"),
        }  # fmt: skip
        self.records.append(Record.model_validate({**told, **changes}))

    @property
    def all(self) -> Remembered:
        return Remembered(self.records, self.kept)


def trials(wanted: RunOptions, repeat: int = 1) -> dict[tuple[str, str], Trial]:
    """Return a repeat's trials by what is timed in their first role, and its name."""
    known = repeat_trials(wanted, f"repeat-{repeat}", repeat)
    return {(trial.roles[0].subjects[0].workload, trial.roles[0].name): trial for trial in known}


def evidence(role: str, restart: int = 0, **facts: Any) -> Evidence:
    return Evidence(
        role=role, rank=0, restart=restart, pid=1, device="cpu:0", isolation_asked="full", isolation_held="full",
        allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=0.1,
        subjects=(SubjectFacts(subject=0, **facts),),
    )  # fmt: skip


def known(value: float, off: float | None) -> Estimate:
    low, high = (None, None) if off is None else (value - off, value + off)
    return Estimate(value=value, low=low, high=high, unit="µs", scope="run", method="made", n=5)


def finding(workload: str, device: str, value: float = 2.0, off: float | None = 0.0) -> Finding:
    facts: Any = {"workload": workload, "device": device}
    return Finding(claim="c", estimate=known(value, off), verdict="yes", records=(), facts=facts)


def test_records_are_of_a_subject_in_a_role_in_every_repeat_that_was_asked_for() -> None:
    wanted, world = options(subjects=(SOFTMAX, GEMM), devices=("cpu:0", "cpu:1"), repeat=2), World()
    planned = {repeat: trials(wanted, repeat) for repeat in (1, 2, 3)}
    for repeat in planned.values():
        for trial in repeat.values():
            world.add(trial)
    results = {(result.subject.workload, result.role): result for result in collect_results(wanted, world.all)}
    assert list(results) == [(subject, role) for subject in ("softmax", "gemm") for role in ("cpu:0", "cpu:1")]
    for key, result in results.items():
        assert [record.trial for record in result.tried] == [planned[repeat][key].id for repeat in (1, 2)]


def test_samples_are_of_one_role_and_quantity_the_slowest_rank_of_each_restart() -> None:
    world = World()
    trial = trials(options())["softmax", "cpu:0"]
    world.add(
        trial,
        ("cpu:0", "call_us", 1, [7.0, 8.0]),
        ("cpu:0", "call_us", 0, [1.0, 4.0]),
        ("cpu:0", "call_us", 0, [3.0, 2.0, 9.0]),
        ("cpu:0", "busy_us", 0, [100.0]),
        ("cpu:1", "call_us", 0, [200.0, 200.0]),
    )
    world.add(trial, ("cpu:0", "call_us", 0, [5.0]))
    found = samples_by_process(world.all, world.records, "cpu:0", "call_us")
    assert [samples.tolist() for samples in found] == [[3.0, 4.0], [7.0, 8.0], [5.0]]
    assert samples_by_process(world.all, world.records, "cpu:0", "span_us") == []


def test_what_never_worked_is_told_with_its_last_try() -> None:
    wanted, world = options(repeat=3), World()
    told: list[dict[str, Any]] = [
        {"status": "failed", "reason": "first", "origin": "fake"},
        {"status": "failed", "reason": "second", "origin": "fake"},
        {"status": "refused", "reason": "third", "origin": "simulated"},
    ]
    for repeat, changes in enumerate(told, 1):
        world.add(trials(wanted, repeat)["softmax", "cpu:0"], **changes)
    found = analyse(wanted, world.all)
    assert found.headline == "Nothing could be measured."
    (one,) = found.findings
    assert one.model_dump(exclude_defaults=True) == {
        "kind": "missing",
        "claim": "softmax@numpy can be timed on cpu:0",
        "estimate": None,
        "verdict": "no",
        "records": tuple(record.trial for record in world.records),
        "reason": "third",
        "facts": {"workload": "softmax@numpy", "device": "cpu:0", "status": "refused"},
        "origin": "simulated",
    }


def test_a_time_rests_on_the_records_that_worked_and_tells_the_other_times_beside_it() -> None:
    wanted, world = options(repeat=3, devices=("cuda:0",)), World()
    planned = [trials(wanted, repeat)["softmax", "cuda:0"] for repeat in (1, 2, 3)]
    timed = {"method": "events", "why": "w", "cache": "cold"}
    told = evidence("cuda:0", flop=4e6, bytes_moved=8e6, backend="aten", timed=timed)
    call, span, clock = (("cuda:0", name, 0, [1.0, 2.0, 9.0]) for name in ("call_us", "span_us", "clock_mhz"))
    world.add(planned[0], status="failed", reason="it fell over")
    world.add(planned[1], ("cuda:0", "busy_us", 0, [1.0]), call, span, clock, evidence=(told,), origin="fake")
    world.add(planned[2], ("cuda:0", "busy_us", 0, [1.0]), call, span, clock, origin="simulated")
    (one,) = analyse(wanted, world.all).findings
    assert one.claim == "softmax@numpy on cuda:0, sequential: the median time of its kernels is known to ±6.25 %"
    assert (one.verdict, one.reason, one.origin) == ("yes", None, "fake")
    assert one.records == (planned[1].id, planned[2].id)
    assert one.estimate is not None
    assert (one.estimate.value, one.estimate.unit, one.estimate.scope) == (1.0, "µs", "run")
    assert one.facts == {
        "workload": "softmax@numpy", "device": "cuda:0", "processes": 2, "quantity": "busy_us", "span_us": 2.0,
        "call_us": 2.0, "clock_mhz": 2.0, "method": "events", "cache": "cold", "backend": "aten",
        "gflops": 4000.0, "gb_s": 8000.0, "matmul_percent": None, "copy_percent": None,
    }  # fmt: skip


def test_the_precision_that_was_asked_for_is_told_with_three_digits() -> None:
    wanted, world = options(precision=0.012345), World()
    world.add(trials(wanted)["softmax", "cpu:0"], ("cpu:0", "call_us", 0, [5.0]))
    (one,) = analyse(wanted, world.all).findings
    assert one.claim.endswith("the median time of a call is known to ±1.23 %")


def test_caches_are_told_where_a_gpu_was_timed_and_nothing_where_nobody_said() -> None:
    def facts(*seen: Evidence) -> dict[str, Any]:
        world, wanted = World(), options()
        world.add(trials(wanted)["softmax", "cpu:0"], ("cpu:0", "call_us", 0, [5.0]), evidence=seen)
        (one,) = analyse(wanted, world.all).findings
        return {name: one.facts[name] for name in ("method", "cache", "backend", "busy_us", "clock_mhz", "gflops")}

    nothing = dict.fromkeys(("method", "cache", "backend", "busy_us", "clock_mhz", "gflops"))
    assert facts() == nothing
    assert facts(evidence("cpu:0", backend="blas")) == {**nothing, "backend": "blas"}
    by_wall = {"method": "wall", "why": "w", "cache": "warm"}
    assert facts(evidence("cpu:0", timed=by_wall)) == {**nothing, "method": "wall"}


def test_one_process_stands_for_a_run_only_where_every_sample_starts_a_command() -> None:
    command = Subject(workload="sleep 1", impl="command", command=Command(argv=("sleep", "1")))
    for subject, scope in ((SOFTMAX, "process"), (command, "run")):
        wanted, world = options(subjects=(subject,)), World()
        world.add(trials(wanted)[subject.workload, "cpu:0"], ("cpu:0", "call_us", 0, [5.0, 6.0]))
        (one,) = analyse(wanted, world.all).findings
        assert one.estimate is not None
        assert one.estimate.scope == scope


def test_what_was_never_tried_is_no_finding() -> None:
    wanted, world = options(subjects=(SOFTMAX, GEMM)), World()
    world.add(trials(wanted)["gemm", "cpu:0"], ("cpu:0", "call_us", 0, [5.0]))
    assert [one.facts["workload"] for one in analyse(wanted, world.all).findings] == ["gemm@numpy"]


@pytest.mark.parametrize(
    ("off", "judged"),
    [
        (0.0625, ("yes", None)),
        (0.09375, ("no", "it is known to ±9.38 %; a longer --duration or more --repeat narrows it")),
        (0.125, ("no", "it is known to ±12.5 %; a longer --duration or more --repeat narrows it")),
        (None, ("unsure", "made; more processes (--restarts, a longer --duration) give one over them")),
    ],
)
def test_a_time_is_known_well_enough_up_to_the_precision_that_was_asked_for(
    off: float | None, judged: tuple[str, str | None]
) -> None:
    assert report._judge_precision(known(1.0, off), 0.0625) == judged


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, "alone"),
        ({"devices": ("cpu:0", "cpu:1")}, "alone"),
        ({"mode": "concurrent"}, "alone"),
        ({"ranks": 2}, "over 2 ranks"),
        ({"ranks": 3}, "over 3 ranks"),
        ({"mode": "concurrent", "devices": ("cpu:0", "cpu:1")}, "side by side"),
    ],
)
def test_the_answer_says_how_it_was_measured(changes: dict[str, Any], how: str) -> None:
    said = report._headline(options(**changes), (finding("a", "cpu:0"),))
    assert said == f"a takes 2.000 µs on cpu:0 ({how}). The widest interval is ±0 %."


def test_the_answer_names_three_workloads_and_counts_the_others() -> None:
    def said(count: int) -> str:
        return report._headline(options(), tuple(finding(f"w{n}", "cpu:0", 1.0 + n) for n in range(count)))

    first = "w0 takes 1.000 µs on cpu:0; w1 takes 2.000 µs on cpu:0"
    end = " (alone). The widest interval is ±0 %."
    assert said(2) == f"{first}{end}"
    assert said(3) == f"{first}; w2 takes 3.000 µs on cpu:0{end}"
    assert said(4) == f"{first}; w2 takes 3.000 µs on cpu:0; and 1 more{end}"
    assert said(5) == f"{first}; w2 takes 3.000 µs on cpu:0; and 2 more{end}"


@pytest.mark.parametrize(
    ("count", "listed"),
    [
        (1, "2.000 µs on 0"),
        (2, "2.000 µs on 0 and 2.000 µs on 1"),
        (3, "2.000 µs on 0, 2.000 µs on 1 and 2.000 µs on 2"),
        (4, "2.000 µs on 0, 2.000 µs on 1, 2.000 µs on 2 and 2.000 µs on 3"),
        (5, "2.000 µs on 0, 2.000 µs on 1, 2.000 µs on 2 and so on"),
        (6, "2.000 µs on 0, 2.000 µs on 1, 2.000 µs on 2 and so on"),
    ],
)
def test_the_answer_lists_up_to_four_devices_and_of_more_the_first_three(count: int, listed: str) -> None:
    said = report._headline(options(), tuple(finding("a", str(n)) for n in range(count)))
    assert said == f"a takes {listed} (alone). The widest interval is ±0 %."


def test_the_answer_has_the_widest_interval_and_counts_those_without_one() -> None:
    def said(*offs: float | None) -> str:
        text = report._headline(options(), tuple(finding("a", "0", 1.0, off) for off in offs))
        return text.partition(" (alone).")[2]

    assert said(0.25, 0.5, 0.125) == " The widest interval is ±50 %."
    assert said(0.25, None) == " The widest interval is ±25 %. 1 has no interval; the table says why."
    assert said(None, 0.25, None) == " The widest interval is ±25 %. 2 have no interval; the table says why."
    assert said(None) == " 1 has no interval; the table says why."
    refused = Finding(claim="c", estimate=None, verdict="no", records=())
    both = report._headline(options(), (refused, finding("a", "0", 1.0, 0.25)))
    assert both == "a takes 1.000 µs on 0 (alone). The widest interval is ±25 %."
