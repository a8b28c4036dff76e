"""What runs of energy say, where the truth is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.page import Page, Table, Text
from assay.core.results import Estimate, Note
from assay.experiments.energy import EXPERIMENT
from assay.experiments.energy.findings import end_sentence
from assay.experiments.energy.report import format_share, note_texts, utilization_table
from assay.experiments.energy.result import FIGURES, EnergyResult, EnergyRow
from assay.experiments.energy.study import ENERGY_DISABLED, build_study
from assay.workloads.generation.placement import ModelSizes, placement_notes
from tests.experiments.energy.metered_world import (
    DECODE_W,
    IDLE_W,
    PREFILL_TOKEN_S,
    PREFILL_W,
    STEP_S,
    World,
    config,
    gpus,
    options,
)
from tests.machines import machine

if TYPE_CHECKING:
    from assay.experiments.energy.options import EnergyOptions
    from assay.machine.model import Machine
    from tests.experiments.remembered import Remembered

IDS: dict[int, list[int]] = {1: [0], 2: [0, 1], 4: [0, 1, 2, 3], 8: list(range(8))}
UNBALANCED = Note(code="unbalanced", message="unbalanced: GPU 0 holds 3 of 4 layers", severity="warning")
SERVER = {"type": "openai", "model": "some/model", "endpoint": "http://127.0.0.1:8000/v1"}


def result_of(there: Machine, wanted: EnergyOptions, records: Remembered) -> EnergyResult:
    return build_study(there, wanted, records).result


def value(row: EnergyRow, name: str) -> float:
    estimate = row.figures[name]
    assert estimate is not None, row.missing_reasons.get(name)
    return estimate.value


def why(row: EnergyRow, name: str) -> str:
    assert row.figures[name] is None
    return row.missing_reasons[name]


def single(there: Machine, wanted: EnergyOptions, world: World) -> EnergyRow:
    (row,) = result_of(there, wanted, world.measured(wanted)).rows
    return row


def page_of(there: Machine, wanted: EnergyOptions, world: World) -> Page:
    records = world.measured(wanted)
    return EXPERIMENT.report(there, wanted, records).page


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_figure_meets_the_truth_on_any_number_of_gpus(count: int) -> None:
    there = gpus(8)
    wanted = options(
        there, config(backend={"device_ids": IDS[count]}, metrics={"carbon_g_per_kwh": 400}, batch_sizes=8)
    )
    row = single(there, wanted, World(there, between=0.0, host_w=50.0))
    read_s, made_s = 8 * 100 * PREFILL_TOKEN_S, 50 * STEP_S["eager"]
    request_j = (PREFILL_W * read_s + DECODE_W * made_s) / 8
    whole_s = read_s + made_s
    power_w = 8 * request_j / whole_s
    truth = {
        "decode_j_per_token": DECODE_W * STEP_S["eager"] / 8,
        "prefill_j_per_token": PREFILL_W * PREFILL_TOKEN_S,
        "j_per_output_token": request_j / 51,
        "j_per_total_token": request_j / 151,
        "j_per_request": request_j,
        "wh_per_1000_requests": request_j / 3.6,
        "carbon_g_per_1000_requests": request_j / 3.6 / 1000 * 400,
        "decode_tokens_per_s": 8 / STEP_S["eager"],
        "prefill_tokens_per_s": 1 / PREFILL_TOKEN_S,
        "output_tokens_per_s": 8 * 51 / whole_s,
        "requests_per_s": 8 / whole_s,
        "ttft_ms": 1e3 * read_s,
        "tpot_ms": 1e3 * STEP_S["eager"],
        "gap_p50_ms": 20.0,
        "gap_p95_ms": 20.0,
        "gap_p99_ms": 20.0,
        "tokens_per_s_per_w": 8 * 51 / whole_s / power_w,
        "power_w": power_w,
        "idle_w": IDLE_W,
        "idle_share": IDLE_W / power_w,
        "busy_share": 0.9,
        "bandwidth_share": 0.25,
        "compute_share": 0.5,
        "phases_share": 1.0,
        "host_j_per_output_token": 50.0 * whole_s / (8 * 51),
    }
    assert set(truth) == set(FIGURES)
    for name, expected in truth.items():
        assert value(row, name) == pytest.approx(expected, rel=1e-6), name
        estimate = row.figures[name]
        assert estimate is not None
        assert (estimate.unit, estimate.scope) == (FIGURES[name][0], "run")
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low <= estimate.value <= estimate.high
    assert [gpu.gpu for gpu in row.gpus] == IDS[count]
    parts = [gpu.energy_j_per_request for gpu in row.gpus]
    assert sum(part.value for part in parts if part is not None) == pytest.approx(request_j)
    assert not row.partial
    assert (row.missing_reasons, row.notes) == ({}, ())


def test_statistics_of_gpus_are_means_and_the_most_beside_them() -> None:
    there = gpus(4)
    row = single(there, options(there, config(backend={"device_ids": [1, 3]})), World(there, between=0.0))
    assert [gpu.gpu for gpu in row.gpus] == [1, 3]
    power_w = value(row, "power_w")
    for gpu in row.gpus:
        assert gpu.power_draw_w == pytest.approx(power_w / 2)
        assert gpu.power_draw_w_max == pytest.approx(1.1 * power_w / 2)
        assert gpu.utilization_percent == pytest.approx(50.0)
        assert (gpu.utilization_percent_max, gpu.temperature_c_max) == (60.0 + gpu.gpu, 70.0)
        assert (gpu.memory_used_mb, gpu.memory_total_mb) == (4000.0 + gpu.gpu, 80_000.0)
        assert gpu.memory_percent == pytest.approx(5.0, rel=0.01)
        assert gpu.temperature_c == pytest.approx(60.0)
    assert row.peak_power_w == pytest.approx(1.2 * power_w)
    whole = row.energy_j
    assert whole is not None
    assert row.measured_s is not None
    assert whole.value == pytest.approx(power_w * row.measured_s)
    assert row.tokens["output_tokens"] == 51 * row.tokens["requests"]


def test_a_gpu_that_does_not_say_its_power_takes_the_sum_with_it_and_nothing_else() -> None:
    there = gpus(2)
    row = single(there, options(there, config(backend={"device_ids": [0, 1]})), World(there, silent=frozenset({1})))
    assert why(row, "decode_j_per_token") == "this device shows neither its energy nor its power"
    assert value(row, "decode_tokens_per_s") == pytest.approx(50.0)
    said, silent = row.gpus
    assert said.energy_j_per_request is not None
    assert (silent.power_draw_w, silent.energy_j_per_request, silent.utilization_percent) == (None, None, 50.0)
    assert "neither its energy nor its power" in (silent.note or "")
    assert row.energy_j is None


def test_a_gpu_lost_midway_leaves_what_was_measured_marked() -> None:
    there = gpus(1)
    wanted = options(there, config(batch_sizes=[1, 8, 32]))
    records = World(there, lost=4).measured(wanted)
    assert [record.status for record in records] == ["ok", "failed"]
    result = result_of(there, wanted, records)
    assert [row.partial for row in result.rows] == [True] * 3
    first, *others = result.rows
    told = first.figures["decode_j_per_token"]
    assert told is not None
    assert (told.n, told.scope) == (2, "process"), "two processes do not stand for a run"
    assert all(row.figures["decode_j_per_token"] is not None for row in others), "the first process had them all"
    assert {"phase_cut_short", "run_cut_short"} & {note.code for note in first.notes}
    assert "3 of 3 only in part" in EXPERIMENT.report(there, wanted, records).findings.headline


def test_out_of_memory_at_the_third_batch_size_keeps_the_others_and_says_why() -> None:
    there = gpus(1)
    wanted = options(there, config(batch_sizes=[1, 8, 32]))
    why = "out of memory: 81.2 GiB are needed and 79.6 GiB are there"
    world = World(there, fails=lambda told: why if told.batch == 32 and told.phase != "idle" else None)
    records = world.measured(wanted)
    result = result_of(there, wanted, records)
    assert [row.cell.batch for row in result.rows] == [1, 8]
    assert not any(row.partial for row in result.rows)
    assert result.skipped == {"eager, batch 32, 100 in, 51 out": why}
    found = EXPERIMENT.report(there, wanted, records).findings
    assert f"1 of 3 cells left out ({why})" in found.headline
    (left,) = [finding for finding in found.findings if finding.kind == "left_out"]
    assert (left.verdict, left.reason) == ("no", why)


def test_a_phase_that_does_not_work_leaves_the_other_phases_and_marks_the_cell() -> None:
    there = gpus(1)
    wanted = options(there, config())
    row = single(there, wanted, World(there, fails=lambda told: "it broke" if told.phase == "decode" else None))
    assert row.partial
    assert why(row, "decode_j_per_token") == "it broke"
    assert value(row, "prefill_j_per_token") > 0
    assert why(row, "phases_share") == "no process has the energy of both phases and of whole requests"
    assert [note.params for note in row.notes if note.code == "phase_cut_short"] == [{"processes": 3}]


def test_a_server_is_not_taken_apart_and_its_errors_are_counted() -> None:
    there = gpus(2)
    wanted = options(there, config(backend={**SERVER, "device_ids": [1]}, concurrency=[4, 1]))
    assert (wanted.devices, wanted.metered) == (("cpu:0",), ("cuda:1",))
    result = result_of(
        there, wanted, World(there, between=0.0, errors=2.0, answers={"short_requests": 0.05}).measured(wanted)
    )
    assert [row.cell.name for row in result.rows] == [
        "server, 1 at once, 100 in, 51 out", "server, 4 at once, 100 in, 51 out",
    ]  # fmt: skip
    row = result.rows[1]
    assert why(row, "decode_j_per_token") == why(row, "phases_share") == "a server is not taken apart"
    assert why(row, "busy_share") == "a server's kernels and memory are not seen from outside"
    request_j = (PREFILL_W * 100 * PREFILL_TOKEN_S + DECODE_W * 50 * STEP_S["eager"]) / 4
    assert value(row, "j_per_request") == pytest.approx(request_j)
    assert value(row, "ttft_ms") == pytest.approx(2.0)
    assert value(row, "gap_p99_ms") == pytest.approx(20.0)
    assert value(row, "tpot_ms") == pytest.approx(10.0)
    assert {"requests_failed", "short_answers", "client_bound"} <= {note.code for note in row.notes}


def test_requests_of_another_length_than_asked_for_are_not_told_as_those() -> None:
    there = gpus(1)
    backend = {**SERVER, "device_ids": [0]}
    wanted = options(there, config(backend=backend, metrics={"carbon_g_per_kwh": 400}, concurrency=4))
    short = {"short_requests": 4.0, "answer_tokens": 4 * 7.0, "output_tokens": 4 * 7.0}
    row = single(there, wanted, World(there, answers=short))
    assert row.partial
    reason = "answers had 7.0 tokens on average, not 51"
    for name in ("j_per_request", "wh_per_1000_requests", "carbon_g_per_1000_requests", "requests_per_s"):
        assert why(row, name) == reason
    assert value(row, "j_per_output_token") > 0
    assert row.gpus[0].energy_j_per_request is None
    (note,) = [note for note in row.notes if note.code == "answer_length"]
    assert (note.severity, note.params) == ("warning", {"short_requests": note.params["short_requests"]})
    page = page_of(there, wanted, World(there, answers=short))
    texts = [each for section in page.sections for each in section.elements if isinstance(each, Text)]
    assert [text.tone for text in texts if reason in text.text] == [page.lead_tone] == ["unsure"]


@pytest.mark.parametrize(
    ("answers", "code", "params"),
    [
        ({"output_tokens": 51.0}, "server_counted", {}),
        ({"output_tokens": 8 * 51.0}, "several_tokens_a_chunk", {"tokens_per_chunk": 8.0}),
        ({"uncounted_requests": 1.0}, "chunks_counted", {"uncounted": 4.0, "answered": 4.0}),
        ({"uncounted_requests": 0.25}, "partly_counted", {"uncounted": 1.0, "answered": 4.0}),
        ({"long_requests": 1.0}, "answer_length", {"long_requests": 4.0}),
        ({"silence_us": 3e6}, "server_stalled", {"stalls": 4, "longest_s": 3.0}),
    ],
)
def test_what_a_servers_answers_were_like_is_told_from_the_load(
    answers: dict[str, float], code: str, params: dict[str, float]
) -> None:
    there = gpus(1)
    wanted = options(there, config(backend={**SERVER, "device_ids": [0]}, repeats=1, window_s=4.0, precision=0.5))
    row = single(there, wanted, World(there, answers=answers))
    notes = {note.code: note for note in row.notes}
    assert notes[code].params == params
    assert ("server_counted" in notes) is ("uncounted_requests" not in answers)


def test_a_stall_is_part_of_the_answer() -> None:
    there = gpus(1)
    wanted = options(there, config(backend={**SERVER, "device_ids": [0]}))
    page = page_of(there, wanted, World(there, answers={"silence_us": 3e6}))
    assert page.lead_tone == "unsure"
    assert "The server stalled meanwhile, and that time counts." in page.lead


def test_a_reason_that_asks_keeps_its_mark_and_others_end_with_one_full_stop() -> None:
    there = gpus(1)
    wanted = options(there, config(backend={**SERVER, "device_ids": [0]}))
    records = World(there, fails=lambda told: "It has huge. Did you mean huge?").measured(wanted)
    said = EXPERIMENT.report(there, wanted, records).findings.headline
    assert said == "Nothing could be measured: It has huge. Did you mean huge?"
    assert [end_sentence(words) for words in ("it broke", "It broke.")] == ["it broke.", "It broke."]


def test_prompts_that_nobody_counted_are_not_none() -> None:
    there = gpus(1)
    wanted = options(there, config(backend={**SERVER, "device_ids": [0]}))
    row = single(there, wanted, World(there, uncounted=True))
    assert why(row, "j_per_total_token") == "how many tokens prompts have is not known"
    assert "input_tokens" not in row.tokens


def test_times_alone_are_told_where_no_energy_is_asked_for_or_none_can_be_read() -> None:
    there = gpus(1)
    wanted = options(there, config(metrics={"enabled": False}))
    assert (wanted.monitored, wanted.stage_s) == (False, 1.0)
    records = World(there, watched=False).measured(wanted)
    row = result_of(there, wanted, records).rows[0]
    assert why(row, "decode_j_per_token") == why(row, "idle_w") == ENERGY_DISABLED
    assert (
        "50.0 tokens/s at batch 1, eager; no energy reported"
        in EXPERIMENT.report(there, wanted, records).findings.headline
    )
    bare = machine(cores=(4,))
    wanted = options(bare, config())
    row = single(bare, wanted, World(bare))
    assert why(row, "decode_j_per_token") == "no GPU is metered"
    assert why(row, "host_j_per_output_token").startswith("the processor's energy counters")
    assert row.gpus == ()


def test_the_processors_energy_is_told_without_a_gpu_and_counts_nothing_twice() -> None:
    bare = machine(cores=(4,))
    row = single(bare, options(bare, config()), World(bare, host_w=40.0))
    whole_s = 100 * PREFILL_TOKEN_S + 50 * STEP_S["eager"]
    assert value(row, "host_j_per_output_token") == pytest.approx(40.0 * whole_s / 51)


def test_a_loop_that_waits_for_the_host_is_called_so_with_the_number() -> None:
    there = gpus(1)
    wanted = options(there, config(modes=["eager", "graphs"]))
    eager, graphs = result_of(there, wanted, World(there, busy=0.17).measured(wanted)).rows
    (note,) = [note for note in eager.notes if note.code == "host_bound"]
    assert note.severity == "warning"
    assert note.params == {"busy_share": pytest.approx(0.17)}
    assert "mode graphs" in note.message
    assert not any("mode graphs" in note.message for note in graphs.notes)
    steady = single(there, options(there, config()), World(there))
    assert "host_bound" not in {note.code for note in steady.notes}


def test_where_no_kernel_was_looked_at_nothing_is_said_of_waiting() -> None:
    there = gpus(1)
    wanted = options(there, config())
    rows = result_of(there, wanted, World(there, busy=0.2).measured(wanted)).rows
    (looked,) = utilization_table(rows)
    (not_looked,) = utilization_table(
        [row.model_copy(update={"figures": {**row.figures, "busy_share": None}}) for row in rows]
    )
    assert isinstance(looked, Table)
    assert isinstance(not_looked, Table)
    assert [column.title for column in looked.columns][1:3] == ["GPU busy (decode)", "waited for the host"]
    assert [len(row) for row in not_looked.rows] == [len(not_looked.columns)] == [3]
    assert "waited" not in (not_looked.note or "")


def test_what_a_share_leaves_is_never_less_than_nothing() -> None:
    busy = Estimate(value=0.995, low=0.98, high=1.01, unit="", scope="run", method="", n=3)
    assert format_share(busy) == "99.5 % (98–101)"
    assert format_share(busy, rest=True) == "0.5 % (0–2)"


def test_prompts_for_which_the_gpu_waits_are_told_of_in_every_mode() -> None:
    there = gpus(1)
    wanted = options(there, config(modes=["eager", "graphs"]))
    for busy, told in ((0.45, True), (0.9, False)):
        for row in result_of(there, wanted, World(there, busy=busy).measured(wanted)).rows:
            shares = [note.params["waited_share"] for note in row.notes if note.code == "host_bound_prefill"]
            assert shares == ([pytest.approx(0.55)] if told else [])


def test_a_host_that_is_waited_for_and_does_not_keep_its_speed_is_told_of() -> None:
    there = gpus(1)
    wanted = options(there, config())

    def notes(busy: float, sway: float) -> list[Note]:
        row = single(there, wanted, World(there, busy=busy, sway=sway))
        return [note for note in row.notes if note.code == "unsteady_host"]

    (note,) = notes(busy=0.2, sway=0.25)
    low, high = 1e3 * STEP_S["eager"] * 0.75, 1e3 * STEP_S["eager"] * 1.25
    assert note.params == pytest.approx({"low_ms": low, "high_ms": high}, rel=0.01)
    assert not notes(busy=0.2, sway=0.05)
    assert not notes(busy=0.9, sway=0.25)


def test_prompts_that_are_not_as_long_as_the_cell_says_are_told_of() -> None:
    there = gpus(1)
    wanted = options(there, config(backend={**SERVER, "device_ids": [0]}))
    short = World(there, answers={"input_tokens": 40.0, "requests": 1.0})
    (note,) = [note for note in single(there, wanted, short).notes if note.code == "prompt_length"]
    assert (note.severity, note.params) == ("warning", {"tokens": 40.0, "requested": 100})
    assert "prompt_length" not in {note.code for note in single(there, wanted, World(there)).notes}


def test_prompts_are_as_many_as_first_tokens_where_a_window_cuts_answers() -> None:
    there = gpus(1)
    wanted = options(there, config(backend={**SERVER, "device_ids": [0]}))
    notes = single(there, wanted, World(there, answers={"input_tokens": 40.0, "requests": 0.5})).notes
    assert {"tokens": 40.0, "requested": 100} in [note.params for note in notes if note.code == "prompt_length"]
    others = single(there, wanted, World(there, answers={"requests": 0.5})).notes
    assert "prompt_length" not in {note.code for note in others}


def test_windows_that_end_before_an_answer_does_are_only_in_part() -> None:
    there = gpus(1)
    wanted = options(there, config(backend={**SERVER, "device_ids": [0]}, window_s=2.0))
    row = single(there, wanted, World(there, answers={"requests": 0.0}))
    assert row.partial
    assert why(row, "requests_per_s") == why(row, "j_per_request") == "no answer was whole within the window of 2 s"
    assert ("incomplete_answers", "warning") in {(note.code, note.severity) for note in row.notes}
    assert value(row, "output_tokens_per_s") > 0
    assert not single(there, wanted, World(there)).partial


def test_a_profiler_that_does_not_let_go_is_told_of() -> None:
    there = gpus(1)
    wanted = options(there, config())
    assert "still_traced" not in {note.code for note in single(there, wanted, World(there, after=1.05)).notes}
    (note,) = [note for note in single(there, wanted, World(there, after=1.2)).notes if note.code == "still_traced"]
    assert note.params["longer_share"] == pytest.approx(0.2)


def test_graphs_are_held_against_eager_in_joules_and_in_speed() -> None:
    there = gpus(1)
    wanted = options(there, config(modes=["eager", "graphs"]))
    found = EXPERIMENT.report(there, wanted, World(there).measured(wanted)).findings
    joules, speed = [finding for finding in found.findings if finding.kind == "modes"]
    assert (joules.verdict, speed.verdict) == ("yes", "yes")
    assert joules.estimate is not None
    assert speed.estimate is not None
    assert joules.estimate.value == pytest.approx(0.2)
    assert joules.estimate.low is not None
    assert joules.estimate.low < 0.2 < (joules.estimate.high or 0)
    assert speed.estimate.value == pytest.approx(5.0)


def test_a_fake_gpu_says_so_everywhere() -> None:
    there = gpus(1)
    wanted = options(there, config())
    records = World(there, origin="fake").measured(wanted)
    report = EXPERIMENT.report(there, wanted, records)
    found = report.findings
    assert {finding.origin for finding in found.findings} == {"fake"}
    assert found.headline.endswith("The numbers are of a fake device.")
    assert {row.origin for row in result_of(there, wanted, records).rows} == {"fake"}
    assert report.page.origin == "fake"


def test_few_gaps_tell_no_p99_and_say_how_many_are_needed() -> None:
    there = gpus(1)
    wanted = options(there, config(output_tokens=5, window_s=0.2))
    row = single(there, wanted, World(there))
    assert why(row, "gap_p99_ms") == "100 gaps of one process are needed, and there are 12 at most"
    assert value(row, "gap_p50_ms") == pytest.approx(20.0)


def test_one_process_has_the_sensors_interval_and_that_of_its_calls_and_says_so() -> None:
    there = gpus(1)
    wanted = options(there, config(repeats=1, precision=0.9))

    def told(sway: float) -> Estimate:
        found = single(there, wanted, World(there, sensor=lambda _: 0.01, sway=sway)).figures["decode_j_per_token"]
        assert found is not None
        assert (found.scope, found.n) == ("process", 1)
        return found

    steady, swaying = told(0.0), told(0.3)
    assert steady.relative_half_width == pytest.approx(0.01)
    assert swaying.relative_half_width is not None
    assert swaying.relative_half_width > 0.02
    assert swaying.method == (
        "one process: the spread of its calls and the sensor's statistical interval, added in squares"
    )


@pytest.mark.parametrize(("repeats", "words"), [(1, "one process"), (2, "2 processes"), (3, None)])
def test_joules_of_fewer_than_three_processes_say_so_on_their_face(repeats: int, words: str | None) -> None:
    there = gpus(1)
    wanted = options(there, config(repeats=repeats, precision=0.9))
    world = World(there, between=0.0)
    row = single(there, wanted, world)
    assert {found.scope for found in row.figures.values() if found is not None} == {"process" if words else "run"}
    page = page_of(there, wanted, world)
    assert (f"Joules are of {words}: other processes may differ" in page.lead) is (words is not None)
    tables = [each for section in page.sections for each in section.elements if isinstance(each, Table)]
    assert any("Scope process" in (table.note or "") for table in tables) is (words is not None)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    between=st.floats(0.0, 0.2), sensor=st.floats(0.001, 0.1), sway=st.floats(0.0, 0.5),
    repeats=st.integers(1, 5), seed=st.integers(0, 1000),
)  # fmt: skip
def test_joules_a_request_times_requests_a_second_are_watts(
    between: float, sensor: float, sway: float, repeats: int, seed: int
) -> None:
    there = gpus(1)
    wanted = options(there, config(repeats=repeats, precision=0.9))
    row = single(there, wanted, World(there, between=between, sensor=lambda _: sensor, sway=sway, seed=seed))
    joules, rate, power = (row.figures[name] for name in ("j_per_request", "requests_per_s", "power_w"))
    assert joules is not None
    assert rate is not None
    assert power is not None
    halves = [found.relative_half_width for found in (joules, rate, power)]
    allowed = sum(half for half in halves if half is not None)
    assert abs(joules.value * rate.value / power.value - 1) <= allowed + 1e-9
    if repeats == 1:
        assert joules.value * rate.value == pytest.approx(power.value)


@pytest.mark.full
@pytest.mark.parametrize(
    "world",
    [
        {},
        {"silent": frozenset({0})},
        {"lost": 2},
        {"watched": False},
        {"origin": "fake", "notes": (UNBALANCED,)},
        {"fails": lambda told: "it does not work"},
        {"fails": lambda told: "it does not work" if told.phase in {"idle", "whole"} else None},
    ],
)
@pytest.mark.parametrize("backend", [{}, {"device": "cpu"}, SERVER])
def test_pages_and_files_work_whatever_is_missing(world: dict[str, Any], backend: dict[str, Any]) -> None:
    there = gpus(2)
    served = backend.get("type") == "openai"
    sizes: dict[str, Any] = {"concurrency": [1, 4]} if served else {"batch_sizes": [1, 8]}
    wanted = options(there, config(backend=backend, **sizes))
    records = World(there, **world).measured(wanted)
    report = EXPERIMENT.report(there, wanted, records)
    found = report.findings
    page = report.page
    assert page.lead == found.headline
    files = report.files
    assert EnergyResult.model_validate_json(str(files["energy.json"])) == result_of(there, wanted, records)


def test_what_was_noted_of_the_placement_stands_beside_the_cell() -> None:
    there = gpus(1)
    row = single(there, options(there, config()), World(there, notes=(UNBALANCED,)))
    assert row.notes == (UNBALANCED,)
    assert row.placement == {"model.layers.0": "cuda:0"}


def test_an_unbalanced_split_of_a_model_is_a_warning_from_the_planner_to_the_table() -> None:
    """The note is the planner's own: a table that looked for other words than it writes showed it as a remark."""
    there = gpus(1)
    sizes = ModelSizes(
        model="m", dtype="bfloat16", parameters=2**31, weights_bytes=2**32, parts_bytes={}, layers=4,
        kv_bytes_per_token=1, hidden=1, widest=1, context_tokens=1, vocabulary=1,
    )  # fmt: skip
    notes = placement_notes(sizes, {"cuda:0": 3 * 2**30, "cuda:1": 2**30}, ("cuda:0", "cuda:1"), "cuda:0")
    assert [(note.code, note.severity) for note in notes] == [("pipeline", "remark"), ("unbalanced", "warning")]
    assert notes[1].params == {"device": "cuda:0", "share": 0.75, "gpus": 2}
    row = single(there, options(there, config()), World(there, notes=notes))
    shown = {text.text: text.tone for text in note_texts([row]) if isinstance(text, Text)}
    (tone,) = [tone for text, tone in shown.items() if notes[1].message[1:] in text]
    assert tone == "unsure"
    assert sorted(shown.values()) == ["plain", "unsure"]
