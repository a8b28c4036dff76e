"""What is found where the truth is known: slowdowns, spreads, picks, regrets, noise; and what is left of a torn run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.experiments.contention import EXPERIMENT
from assay.experiments.contention.effects import gpu_models
from assay.experiments.contention.options import PHASE_LABELS
from tests.experiments.contention.worlds import (
    GEMM,
    SOFTMAX,
    TWO_CORES,
    World,
    about,
    found_in,
    options,
    overall,
    table,
)
from tests.machines import machine

if TYPE_CHECKING:
    from assay.core.results import Estimate


def within(estimate: Estimate | None, truth: float) -> bool:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


def test_a_slowdown_is_found_with_its_size_and_isolation_that_cures_it_too() -> None:
    findings, page = found_in(World(slower={"naive": 2.0}), options())
    naive, isolated, again = (overall(findings, "time", phase) for phase in ("naive", "isolated", "again"))
    assert naive.verdict == "yes"
    assert within(naive.estimate, 2.0)
    assert isolated.verdict != "yes"
    assert again.verdict != "yes"
    assert findings.headline.startswith("Noisy side by side: softmax@numpy takes ")
    assert "`--isolation full` mends it" in findings.headline
    assert page.lead_tone == "bad"
    assert len(naive.records) == 4 * (1 + 2 + 2)
    each = about(findings, "time", phase="naive", device="cpu:1")
    assert [f.verdict for f in each] == ["yes"]


def test_a_slowdown_that_isolation_leaves_asks_for_one_after_another() -> None:
    findings, _ = found_in(World(slower={"naive": 2.0, "isolated": 1.9}), options(workers=2))
    assert overall(findings, "time", "isolated").verdict == "yes"
    assert "4 processes share 2 cores" in findings.headline
    assert "isolated it still takes" in findings.headline
    assert "one worker a device" in findings.headline


def test_where_nothing_changes_it_says_no_and_where_the_noise_comes_from() -> None:
    findings, page = found_in(World(starts=0.002, within=0.01), options(repeat=8))
    assert overall(findings, "time", "naive").verdict == "no"
    assert findings.headline.startswith("Not noisy side by side")
    assert "most noise arises within a process" in findings.headline
    assert page.lead_tone == "good"


def test_without_company_it_says_so_and_what_can_still_be_asked() -> None:
    findings, page = found_in(World(), options(devices=("cpu:0",)))
    assert findings.headline.startswith("Nothing runs side by side here, with one device and one worker")
    assert "measured twice alone in 4 blocks" in findings.headline
    assert "--workers-per-device 2" in findings.headline
    assert not about(findings, "time", phase="naive")
    assert page.lead_tone == "plain"


def test_a_larger_spread_of_repeats_is_found_apart_from_their_level() -> None:
    findings, page = found_in(World(wider={"naive": 4.0}), options())
    naive = overall(findings, "spread", "naive")
    assert naive.verdict == "yes"
    assert within(naive.estimate, 4.0)
    assert overall(findings, "spread", "again").verdict != "yes"
    assert overall(findings, "variation", "baseline").verdict == "yes"
    assert overall(findings, "variation", "naive").verdict == "no"
    rows = table(page, "on each device, phase by phase").rows
    assert all(str(row[-1]).startswith(("2.", "3.")) for row in rows if row[1] == "alone")


def test_picks_that_differ_are_counted_beside_those_that_differ_alone() -> None:
    findings, page = found_in(World(picks_wrong={"naive": 1.0}), options(repeat=6))
    naive, isolated = (overall(findings, "mismatch", phase) for phase in ("naive", "isolated"))
    assert naive.verdict == "yes"
    assert naive.estimate is not None
    assert (naive.estimate.value, naive.estimate.n) == (100.0, 12)
    assert naive.reason is not None
    assert "A/A picks differ in 0 of 12" in naive.reason
    assert isolated.estimate is not None
    assert isolated.estimate.value == 0.0
    assert isolated.verdict == "unsure"  # none of twelve still allows one in four
    chosen = table(page, "what was picked in each block")
    assert chosen.rows[0][2] == "A"
    assert str(chosen.rows[0][3]).startswith("B +")


def test_the_regret_of_picks_is_found_in_quiet_and_per_pick() -> None:
    world = World(picks_wrong={"naive": 0.7, "baseline": 0.1}, regret=1.3, seed=5)
    findings, page = found_in(world, options(repeat=8))
    naive = overall(findings, "regret", "naive")
    assert naive.verdict == "yes"
    assert naive.estimate is not None
    assert 1.05 < naive.estimate.value < 1.3
    (rows,) = (table(page, "regret of each pick").rows,)
    assert {row[1] for row in rows if row[0] == "A"} == {"best"}
    assert str(rows[1][1]).startswith(("+29", "+30", "+31"))
    assert "the picks lose" in findings.headline


def test_picks_that_are_all_alike_prove_little() -> None:
    findings, _ = found_in(World(), options())
    naive = overall(findings, "regret", "naive")
    assert (naive.verdict, naive.estimate is not None and naive.estimate.low) == ("unsure", None)
    assert naive.reason is not None
    assert "every pick cost the same" in naive.reason


def test_a_device_that_is_slower_by_itself_is_told_apart_from_one_that_is_slowed() -> None:
    findings, _ = found_in(World(devices={"cpu:1": 1.5}, starts=0.01), options())
    apart = about(findings, "devices", phase="baseline")
    assert [f.verdict for f in apart] == ["yes"]
    assert within(apart[0].estimate, 1.5)
    assert "cpu:1 takes another time than cpu:0" in apart[0].claim
    assert overall(findings, "time", "naive").verdict != "yes"


def test_gpus_of_different_models_are_not_compared_with_each_other() -> None:
    plain = machine(cores=(8,), gpus=(0, 0))
    mixed = plain.model_copy(update={"gpus": (plain.gpus[0], plain.gpus[1].model_copy(update={"name": "Other"}))})
    wanted = options(devices=("cuda:0", "cuda:1"))
    findings, page = found_in(World(slower={"naive": 2.0}), wanted, mixed)
    (finding,) = about(findings, "devices")
    assert (finding.estimate, finding.verdict) == (None, "unsure")
    assert finding.reason is not None
    assert "different models (Example, Other)" in finding.reason
    assert not about(findings, "mismatch from one device to the next")
    assert overall(findings, "time", "naive").verdict == "yes"
    shown = [e.text for s in page.sections for e in s.elements if e.kind == "text"]
    assert any("GPUs are of different models" in text for text in shown)


def test_gpus_of_one_model_are_compared_with_each_other() -> None:
    alike, wanted = machine(cores=(8,), gpus=(0, 0)), options(devices=("cuda:0", "cuda:1"))
    findings, _ = found_in(World(slower={"naive": 2.0}), wanted, alike)
    told = about(findings, "devices")
    assert told
    assert all(finding.estimate is not None for finding in told)
    other = alike.gpus[1].model_copy(update={"name": "Other"})
    mixed = alike.model_copy(update={"gpus": (alike.gpus[0], other)})
    assert gpu_models(alike, wanted) == ("Example",)
    assert gpu_models(mixed, wanted) == ("Example", "Other")
    assert gpu_models(mixed, options(devices=("cuda:1/0", "cuda:1/1"))) == ("Other",)
    assert gpu_models(mixed, options()) == ()


def test_fewer_cores_than_workers_is_said() -> None:
    _, page = found_in(World(), options(workers=2))
    shown = [e.text for s in page.sections for e in s.elements if e.kind == "text"]
    assert "Side by side 4 processes share 2 cores: isolation cannot give each its own." in shown


def test_noise_is_parted_into_what_makes_it() -> None:
    drifting, _ = found_in(World(drift=0.4, starts=0.001, within=0.01), options(repeat=6))
    (alone,) = about(drifting, "noise", condition="alone")
    parts = {name: value for name, value in alone.facts.items() if name.endswith("_percent")}
    assert max(parts, key=lambda name: float(str(parts[name]))) == "drift_percent"
    starting, _ = found_in(World(starts=0.1, within=0.01), options(repeat=8))
    (alone,) = about(starting, "noise", condition="alone")
    assert float(str(alone.facts["starts_percent"])) == pytest.approx(10.0, rel=0.5)
    assert "more restarts average it out" in starting.headline
    crowded, _ = found_in(World(slower={"naive": 2.0}), options())
    (naive,) = about(crowded, "noise", condition="naive")
    assert float(str(naive.facts["neighbours_percent"])) == pytest.approx(100.0, rel=0.1)


def test_times_go_with_what_was_seen_and_what_was_not_seen_is_left_out() -> None:
    findings, _ = found_in(World(slower={"naive": 2.0, "isolated": 1.3}), options())
    told = {f.claim: f for f in about(findings, "sensors")}
    busy = told["Times go with: CPUs busy"]
    assert busy.verdict == "yes"
    assert float(str(busy.facts["rho"])) > 0.5
    assert not any("hypervisor" in claim or "GPU" in claim for claim in told)
    unwatched, _ = found_in(World(watched=False), options(repeat=2))
    assert not any("CPUs busy" in f.claim for f in about(unwatched, "sensors"))


def test_two_times_of_a_kernel_are_judged_each_by_itself() -> None:
    wanted = options(subjects=(SOFTMAX, GEMM), tunable=(True, True))
    findings, page = found_in(World(slower={"naive": 2.0}, quantities=("busy_us", "call_us")), wanted)
    judged = [f for f in about(findings, "time", phase="naive") if "device" not in f.facts]
    assert [f.facts["quantity"] for f in judged] == ["busy_us", "call_us"]
    assert [f.verdict for f in judged] == ["yes", "yes"]
    where = [str(row[0]) for row in table(page, "Each workload on each device").rows]
    assert {each.partition(" on ")[0] for each in where} == {"softmax@numpy", "gemm@numpy"}
    assert len(set(where)) == len(where)


def test_a_tuner_that_never_finds_anything_is_in_the_answer() -> None:
    nothing = {"baseline", "again", "naive", "isolated"}
    findings, _ = found_in(World(nothing_found=nothing), options())
    assert "; the tuner found no configuration in any of 32 tries (no configuration works)" in findings.headline
    some, _ = found_in(World(nothing_found={"naive"}), options())
    assert "the tuner found no configuration" not in some.headline


def test_where_kernels_are_spared_and_callers_wait_the_answer_says_both() -> None:
    waiting = {"naive": 5.0, "isolated": 5.0}
    findings, page = found_in(World(callers_wait=waiting, quantities=("busy_us", "call_us")), options())
    assert findings.headline.startswith("Noisy side by side for who waits: a call of softmax@numpy takes ")
    assert ", while its kernels take 1.0" in findings.headline or ", while its kernels take 0.9" in findings.headline
    assert "isolated it still takes" in findings.headline
    assert page.lead_tone == "bad"
    judged = {f.facts["quantity"]: f for f in about(findings, "time", phase="naive") if "device" not in f.facts}
    assert judged["call_us"].verdict == "yes"
    assert judged["busy_us"].verdict != "yes"


@pytest.mark.parametrize(
    "refused",
    [
        {(1, "naive"), (3, "again")},
        {(2, "baseline", "cpu:1")},
        {(n, "naive") for n in range(1, 5)},
        {(n, "again") for n in range(1, 5)},
        {(n, phase) for n in range(1, 5) for phase in ("baseline", "again")},
    ],
    ids=["some", "one device once", "never side by side", "never again", "never alone"],
)
def test_what_is_missing_is_named_and_the_rest_is_analysed(refused: set[tuple[object, ...]]) -> None:
    findings, page = found_in(World(slower={"naive": 2.0}, refused=refused), options())
    named = [str(f.reason) for f in about(findings, "missing")]
    for block, phase, *_ in refused:
        assert any(f"block {block}, {PHASE_LABELS[str(phase)]}, softmax@numpy on" in said for said in named)
    assert all("it is not quiet here" in said for said in named)
    shown = [e.text for s in page.sections for e in s.elements if e.kind == "text"]
    (missing,) = [text for text in shown if text.startswith("Missing: block ")]
    assert ("; and " in missing) == (len(named) > 3)
    assert page.sections[-1].title == "What went wrong"
    assert len(findings.headline) > 20


def test_without_a_control_nothing_is_sure() -> None:
    never = {(n, "again") for n in range(1, 5)}
    findings, _ = found_in(World(slower={"naive": 2.0}, refused=never), options())
    naive = overall(findings, "time", "naive")
    assert (naive.verdict, naive.reason) == ("unsure", "there is no A/A control to hold it against")
    assert within(naive.estimate, 2.0)


def test_side_by_side_that_never_came_off_is_said_in_the_headline() -> None:
    never = {(n, "naive") for n in range(1, 5)}
    findings, _ = found_in(World(refused=never), options())
    assert findings.headline.startswith("What side by side does is not known, as it could not be measured")


def test_a_tuner_that_finds_nothing_leaves_the_times() -> None:
    findings, page = found_in(World(slower={"naive": 2.0}, nothing_found={"naive"}), options())
    assert overall(findings, "time", "naive").verdict == "yes"
    assert any("the tuner found no configuration (no configuration works)" in str(f.reason) for f in findings.findings)
    assert not about(findings, "mismatch", phase="naive")
    assert table(page, "what was picked in each block").rows[0][3] == "none"


def test_nothing_measured_is_said() -> None:
    world = World(refused={(1, phase) for phase in ("baseline", "naive", "isolated", "again")})
    findings, page = found_in(world, options())
    assert findings.headline == "Nothing could be measured."
    assert (page.lead_tone, page.sections[-1].title) == ("bad", "What went wrong")


def test_one_block_has_no_interval_and_decides_nothing() -> None:
    findings, _ = found_in(World(slower={"naive": 2.0}), options(repeat=1))
    naive = overall(findings, "time", "naive")
    assert (naive.verdict, naive.estimate is not None and naive.estimate.low) == ("unsure", None)
    assert findings.headline.startswith("Not decided after 1 block")


def test_every_report_draws_every_page() -> None:
    from assay.reports.documents import to_html, to_markdown

    _, page = found_in(World(slower={"naive": 2.0}, picks_wrong={"naive": 0.5}), options(workers=2))
    assert [figure.name for figure in page.figures] == ["ratios", "samples_0", "timeline"]
    assert "Noise budget" in to_markdown(page, {figure.name: "x.png" for figure in page.figures})
    assert "What times go with" in to_html(page)


def test_origin_is_carried_into_findings_and_page() -> None:
    world = World()
    records = world.run(options(repeat=2))
    faked = type(records)([r.model_copy(update={"origin": "fake"}) for r in records], world.kept)
    findings = EXPERIMENT.report(TWO_CORES, options(repeat=2), faked).findings
    assert {f.origin for f in findings.findings} == {"fake"}
