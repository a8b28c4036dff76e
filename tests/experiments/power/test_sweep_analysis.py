"""What is said of sweeps whose truth is known: where energy is least, what a cap costs, and which do nothing."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from assay.experiments.power.rows import SWEEP_FILE, SweepRow, load_rows
from assay.experiments.power.sweep import EXPERIMENT
from assay.experiments.power.sweep.curve import build_study
from tests.experiments.power.sweeps import CALLS, GEMM, LIMITS, MACHINE, Card, Truth, options, points, world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.core.results import Finding, Findings
    from assay.core.values import Scalar, Trial
    from assay.experiments.power.sweep.options import SweepOptions

SEEDS = range(5)


def judged(wanted: SweepOptions, truth: Callable[[Scalar], Truth], **how: Any) -> Findings:
    return EXPERIMENT.report(MACHINE, wanted, world(wanted, lambda _, setting: truth(setting), **how)).findings


def kind(found: Findings, name: str, device: str = "cuda:0") -> Finding:
    return next(f for f in found.findings if (f.kind, f.facts.get("device")) == (name, device))


def truly_best(truth: Callable[[Scalar], Truth]) -> float:
    return min(LIMITS, key=lambda watts: truth(watts).call_s * (truth(watts).power_w or math.inf))


def rising(setting: Scalar) -> Truth:
    """Energy that falls with every watt more: the best is at the upper end."""
    cap_w = 700.0 if setting is None else float(str(setting))
    return Truth(0.02 * (700 / cap_w) ** 1.4, cap_w, held=1.0)


@pytest.mark.parametrize("truth", [Card(exponent=1.3).at, Card(exponent=1.5).at, Card(exponent=3.0).at, rising])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_energy_point_is_right_within_a_step_and_the_truth_is_never_excluded(
    truth: Callable[[Scalar], Truth], seed: int
) -> None:
    best_w = truly_best(truth)
    finding = kind(judged(options(), truth, noise=0.005, seed=seed), "best_energy")
    assert finding.estimate is not None
    assert abs(finding.estimate.value - best_w) <= 50
    assert finding.estimate.low is not None
    assert finding.estimate.high is not None
    assert finding.estimate.low <= best_w <= finding.estimate.high
    assert finding.estimate.unit == "W"


def test_a_flat_curve_has_no_best_point_and_it_is_said() -> None:
    def flat(setting: Scalar) -> Truth:
        watts = 700.0 if setting is None else float(str(setting))
        return Truth(14.0 / watts, watts, held=1.0)

    found = [judged(options(), flat, seed=seed) for seed in SEEDS]
    assert [kind(each, "best_energy").verdict for each in found] == ["unsure"] * len(SEEDS)
    assert all("be told" in each.headline and "they lie within" in each.headline for each in found)


def test_where_the_gpu_as_found_is_cheapest_no_step_is_called_so() -> None:
    def dearer(setting: Scalar) -> Truth:
        return rising(setting) if setting is None or float(str(setting)) < 600 else Truth(0.02, 900.0, held=1.0)

    wanted = options(points=points(None, 200.0, 300.0, 400.0, 500.0))
    for truth, noise in ((rising, 0.001), (dearer, 0.001)):
        said = judged(wanted, truth, noise=noise).headline
        assert "no step is cheaper than as found; at a limit of 500 W it takes 14 % more than as found" in said


def test_where_no_cap_binds_none_saves_energy() -> None:
    found = [judged(options(), lambda _: Truth(0.02, 180.0), seed=seed) for seed in SEEDS]
    assert [kind(each, "best_energy").verdict for each in found] == ["unsure"] * len(SEEDS)
    assert [kind(each, "binding").verdict for each in found] == ["no"] * len(SEEDS)
    assert all("no cap binds, so that none saves energy" in each.headline for each in found)


def test_caps_that_do_not_bind_are_marked_and_those_that_bind_are_not() -> None:
    found = judged(options(), Card(load_w=400.0).at, noise=0.002)
    finding = kind(found, "binding")
    assert finding.verdict == "yes"
    assert finding.facts["does_not_bind"] == "500 W, 550 W, 600 W, 650 W, 700 W"
    assert finding.facts["binds"] == "200 W, 250 W, 300 W, 350 W, 400 W, 450 W"
    assert "500 to 700 W do not bind" in found.headline
    assert finding.estimate is not None
    assert finding.estimate.value == pytest.approx(478, rel=0.01)


@pytest.mark.parametrize(
    ("truth", "binds"),
    [
        (Truth(0.02, 290.0, held=0.5), "binds"),
        (Truth(0.02, 200.0), "does_not_bind"),
        (Truth(0.03, 200.0), "unclear"),
        (Truth(0.02, 299.0), "unclear"),
        (Truth(0.02, None), "unclear"),
        (Truth(0.02, 200.0, held=0.03), "unclear"),
    ],
)
def test_a_cap_does_not_bind_only_where_all_signs_say_so(truth: Truth, binds: str) -> None:
    wanted = options(points=points(None, 300.0))
    records = world(wanted, lambda _, s: Truth(0.02, 200.0) if s is None else truth, noise=0.001)
    (curve,) = build_study(wanted, records).curves
    assert curve.steps[0].binds == binds


@pytest.mark.parametrize(
    ("locked", "reached", "call_s", "binds"),
    [
        (1200.0, 1200.0, 0.03, "binds"),
        (1200.0, 1100.0, 0.03, "unclear"),
        (1980.0, 1950.0, 0.02, "does_not_bind"),
        (1900.0, 1900.0, 0.0201, "unclear"),
    ],
)
def test_a_clock_binds_where_it_is_held_and_slower(locked: float, reached: float, call_s: float, binds: str) -> None:
    wanted = options(knob="sm_mhz", points=points(None, locked))

    def truth(_: str, setting: Scalar) -> Truth:
        return Truth(0.02, 400.0, sm_mhz=1950.0) if setting is None else Truth(call_s, 300.0, sm_mhz=reached)

    (curve,) = build_study(wanted, world(wanted, truth, noise=0.001)).curves
    assert curve.steps[0].binds == binds


@pytest.mark.parametrize("seed", SEEDS)
def test_the_lowest_cap_within_a_slowdown_surely_keeps_it(seed: int) -> None:
    card = Card(exponent=3.0)
    wanted = options(max_slowdown=0.2)
    finding = kind(judged(wanted, card.at, noise=0.004, seed=seed), "within_slowdown")
    assert finding.verdict == "yes"
    setting = float(str(finding.facts["setting"]))
    assert card.at(setting).call_s <= 1.2 * card.at(None).call_s
    assert setting <= 450
    assert float(str(finding.facts["longer_at_most"])) <= 1.2


def test_no_cap_within_a_slowdown_is_said_and_a_close_one_is_left_open() -> None:
    slow = options(points=points(None, 200.0, 250.0))
    assert kind(judged(slow, Card().at), "within_slowdown").verdict == "no"
    close = judged(slow, lambda s: Truth(0.02 if s is None else 0.0209, 200.0), noise=0.01)
    assert kind(close, "within_slowdown").verdict == "unsure"


def test_energy_times_time_has_its_own_best_point() -> None:
    card = Card(exponent=3.0)
    finding = kind(judged(options(), card.at, noise=0.002), "energy_delay")
    best_w = min(LIMITS, key=lambda w: card.at(w).call_s ** 2 * (card.at(w).power_w or math.inf))
    assert finding.estimate is not None
    assert abs(finding.estimate.value - best_w) <= 50


def test_one_repeat_has_a_point_but_no_verdict() -> None:
    found = judged(options(repeat=1), Card(exponent=3.0).at)
    best = kind(found, "best_energy")
    assert (best.verdict, best.reason) == ("unsure", "one repeat tells nothing of chance")
    assert best.estimate is not None
    assert (best.estimate.value, best.estimate.low) == (200.0, None)
    assert kind(found, "within_slowdown").reason == "one repeat tells nothing of chance"
    assert "in a single repeat" in found.headline


def test_each_gpu_has_its_own_curve_alone_and_together() -> None:
    cards = {"cuda:0": Card(exponent=1.5), "cuda:1": Card(exponent=1.3, idle_w=120.0)}
    for together in (False, True):
        wanted = options(devices=tuple(cards), together=together)
        found = EXPERIMENT.report(MACHINE, wanted, world(wanted, lambda d, s: cards[d].at(s), noise=0.002)).findings
        for device, card in cards.items():
            estimate = kind(found, "best_energy", device).estimate
            assert estimate is not None
            assert abs(estimate.value - truly_best(card.at)) <= 50
        assert "On cuda:0 " in found.headline
        assert "On cuda:1 " in found.headline


def test_sizes_are_compared_by_the_energy_of_their_work() -> None:
    wanted = options(knob="size", points=points(1024, 2048, 4096, 8192))

    def truth(setting: Scalar) -> Truth:
        n = float(str(setting))
        return Truth(2 * n**3 / 5e13 + 2e-5, 150 + 500 * min(1.0, n / 8192), flop=2.0 * n**3)

    found = judged(wanted, truth)
    finding = kind(found, "best_energy")
    assert finding.facts["setting"] == 2048
    assert finding.verdict == "yes"
    assert "per floating-point operation" in finding.claim
    assert "pJ a floating-point operation" in found.headline
    bytes_only = judged(wanted, lambda s: Truth(float(str(s)) * 1e-6, 300.0, flop=None, bytes_moved=float(str(s)) * 8))
    assert "per byte" in kind(bytes_only, "best_energy").claim
    unknown = kind(judged(wanted, lambda s: Truth(float(str(s)) * 1e-6, 300.0, flop=None)), "best_energy")
    assert (unknown.estimate, unknown.verdict) == (None, "unsure")
    assert "do different work" in str(unknown.reason)


def test_batches_without_told_work_are_compared_by_the_item_and_dtypes_by_the_call() -> None:
    batches = options(knob="batch", points=points(1, 8, 32))
    found = judged(batches, lambda s: Truth(0.001 * (1 + 0.1 * float(str(s))), 300.0, flop=None))
    assert kind(found, "best_energy").facts["setting"] == 32
    dtypes = options(knob="dtype", points=points("float32", "bfloat16", "float16"))
    half = judged(dtypes, lambda s: Truth(0.02 if s == "float32" else 0.004, 400.0))
    finding = kind(half, "best_energy")
    assert finding.verdict == "unsure"
    assert "16 cannot be told from it" in str(finding.reason)
    assert finding.estimate is not None
    assert finding.estimate.unit == "J"


def test_a_device_without_an_energy_counter_has_times_and_says_why_no_energy() -> None:
    wanted = options(knob="size", points=points(1024, 2048), devices=("cpu:0",))
    found = judged(wanted, lambda s: Truth(2 * float(str(s)) ** 3 / 1e11, None, flop=2 * float(str(s)) ** 3))
    finding = kind(found, "best_energy", "cpu:0")
    assert (finding.estimate, finding.verdict) == (None, "unsure")
    assert finding.reason
    assert "no energy is told" in found.headline


def test_what_was_refused_or_failed_is_named_and_the_rest_is_kept() -> None:
    from assay.experiments.power.sweep.options import SweepPoint

    def fails(trial: Trial) -> str | None:
        return "refused by the driver" if trial.settings.get("power_limit_w") == 250.0 else None

    found = judged(options(), Card().at, fails=fails)
    missing = [f for f in found.findings if f.kind == "missing"]
    assert [(f.verdict, f.reason) for f in missing] == [("no", "refused by the driver")]
    assert "250 W" in missing[0].claim
    nothing = judged(options(), Card().at, fails=lambda _: "refused: it may not")
    assert nothing.headline == "Nothing could be measured: refused: it may not."
    bad = SweepPoint(setting="float17", subject=None, refused="there is no float17")
    wanted = options(knob="dtype", points=(*points("float32"), bad))
    told = judged(wanted, lambda _: Truth(0.02, 300.0))
    assert [f.reason for f in told.findings if f.kind == "missing"] == ["there is no float17"]


def test_everything_simulated_says_so() -> None:
    wanted = options()
    records = world(wanted, lambda _, s: Card().at(s))
    report = EXPERIMENT.report(MACHINE, wanted, records)
    findings = report.findings
    assert {finding.origin for finding in findings.findings} == {"simulated"}
    assert report.page.origin == "simulated"


def test_rows_of_a_sweep_are_left_as_lines_and_as_a_table(tmp_path: Path) -> None:
    wanted = options(devices=("cuda:0", "cuda:1"))
    records = world(wanted, lambda _, s: Card().at(s))
    files = {name: str(text) for name, text in EXPERIMENT.report(MACHINE, wanted, records).files.items()}
    rows = [SweepRow.model_validate(json.loads(line)) for line in files[SWEEP_FILE].splitlines()]
    assert len(rows) == 2 * 12
    assert [row.setting for row in rows[:12]] == [None, *LIMITS]
    capped = rows[1]
    assert (capped.knob, capped.uuid, capped.slot, capped.workload) == ("power_limit_w", "GPU-0", 0, GEMM.label)
    assert (capped.n, len(capped.restart_medians_us)) == (3 * CALLS, 3)
    assert capped.power_w == pytest.approx(200, rel=0.02)
    assert capped.energy_per_call_j is not None
    assert capped.energy_per_call_j == pytest.approx(200 * Card().at(200.0).call_s, rel=0.03)
    assert capped.calls_per_s == pytest.approx(1 / Card().at(200.0).call_s, rel=0.03)
    assert capped.held_back == {"power cap": 1.0}
    assert capped.gflop_per_j == pytest.approx(2 * 8192**3 / 1e9 / capped.energy_per_call_j, rel=1e-6)
    cells = list(csv.DictReader(io.StringIO(files["power/sweep.csv"])))
    assert [cell["setting"] for cell in cells[:3]] == ["null", "200.0", "250.0"]
    (tmp_path / "sweep.csv").write_text(files["power/sweep.csv"])
    read = load_rows([tmp_path / "sweep.csv"], SWEEP_FILE, SweepRow)
    assert read.unusable == ()
    assert read.rows == tuple(rows)


@pytest.mark.parametrize(
    ("wanted", "truth"),
    [
        (options(devices=("cuda:0", "cuda:1")), Card().at),
        (options(knob="dtype", points=points("float32", "bfloat16")), lambda _: Truth(0.02, 300.0)),
        (options(knob="size", points=points(64, 1024), devices=("cpu:0",)), lambda _: Truth(0.02, None)),
        (options(repeat=1, points=points(None, 300.0)), Card().at),
    ],
)
def test_every_sweep_has_a_page(wanted: SweepOptions, truth: Callable[[Scalar], Truth]) -> None:
    records = world(wanted, lambda _, setting: truth(setting), calls=20)
    page = EXPERIMENT.report(MACHINE, wanted, records).page
    assert [section.title for section in page.sections][:2] == ["Results", "Curves"]
    names = {figure.name for figure in page.figures}
    assert "sweep_rate" in names
    assert ("sweep_energy" in names) == (wanted.devices[0] != "cpu:0")
    assert ("sweep_throttle" in names) == wanted.capped
