from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from assay.cli.commands import Verb
from assay.cli.main import cli
from assay.core.errors import BadInput
from assay.experiments.energy.compare import (
    ComparedPoint,
    PointValue,
    build_points,
    choose_compared_by,
    choose_phase,
    comparison_page,
    compute_changes,
    format_value,
    group_comparable,
    pareto_front_path,
    rank_points,
    ratio_of_values,
    read_sources,
)
from assay.experiments.energy.result import build_report_files, flatten_rows
from tests.experiments.energy.made_rows import result, row

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.values import Scalar
    from assay.experiments.energy.result import EnergyResult

COMMAND = Verb("energy compare", cli.verbs["energy compare"])


def put(folder: Path, found: EnergyResult) -> Path:
    """Write what a run leaves."""
    for name, text in build_report_files(found).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def every(model: str = "random:llama-8b", run: str = "energy-1", factor: float = 1.0) -> EnergyResult:
    rows = [row(mode=mode, batch=batch, factor=factor) for mode in ("eager", "graphs") for batch in (1, 8, 32)]
    return result(*rows, model=model, run=run)


def point(rate: float, joules: float, *, batch: int = 1, width: float | None = 0.02, run: str = "a") -> ComparedPoint:
    def known(value: float) -> PointValue:
        return PointValue(value) if width is None else PointValue(value, value * (1 - width), value * (1 + width))

    return ComparedPoint(run, "m", "GPU 0", "eager", batch, 1, 512, 128, "H200", rate=known(rate), joules=known(joules))


def states(found: list[ComparedPoint], *, each: bool = False) -> list[str | None]:
    return [None if standing is None else standing.state for standing in rank_points(found, per_sequence=each)]


def test_a_point_is_dominated_only_where_another_is_better_in_both_beyond_the_intervals() -> None:
    assert states([point(100, 1.0), point(120, 0.8, batch=2)]) == ["dominated", "front"]
    assert states([point(100, 1.0), point(120, 1.2, batch=2)]) == ["front", "front"]
    assert states([point(100, 1.0), point(101, 0.8, batch=2)]) == ["unsure", "front"]
    assert states([point(100, 1.0), point(101, 0.99, batch=2)]) == ["unsure", "unsure"]


def test_without_an_interval_a_difference_counts_only_beyond_a_factor_of_two() -> None:
    bare = point(100, 1.0, width=None)
    assert states([bare, point(2000, 0.1, batch=2, width=None)]) == ["dominated", "front"]
    assert states([bare, point(2000, 0.1, batch=2)]) == ["dominated", "front"]
    assert states([bare, point(200, 0.1, batch=2)]) == ["unsure", "front"], "its interval begins below twice"
    assert states([bare, point(150, 0.7, batch=2, width=None)]) == ["unsure", "unsure"]
    assert states([bare, point(2000, 10.0, batch=2, width=None)]) == ["front", "front"]
    told = comparison_page([bare, point(200, 0.1, batch=2)], "decode", "batch").as_json()
    assert "1 of 2 have a number with no interval: more repeats would give one." in str(told)
    assert "no interval" not in str(comparison_page([point(100, 1.0)], "decode", "batch").as_json())


def test_other_prompts_are_other_work_and_no_rivals() -> None:
    long, short = (replace(point(100 * n, 1.0 / n, batch=n), request=f"prompts=p{n}") for n in (1, 2))
    assert len(group_comparable([long, short])) == 2
    assert compute_changes([long, short], "batch") == []


def test_a_change_is_told_only_where_all_settings_agree() -> None:
    one, two, other = point(100, 1.0), point(180, 0.7, batch=2), point(180, 0.7, batch=2)
    assert [change.second for change in compute_changes([one, two], "batch")] == ["batch 2"]
    assert compute_changes([one, replace(other, settings="attn_implementation=eager")], "batch") == []
    flat = {"config_attn_implementation": "sdpa", "config_isolation": "full", "config_prompts": "p.txt"}
    (read,) = build_points([{**flatten_rows(every())[0], **flat}], "decode")
    assert "attn_implementation=sdpa" in read.settings
    assert "isolation=full" in read.settings
    assert "prompts=p.txt" in read.request


def test_the_same_setting_measured_twice_does_not_compete_with_itself() -> None:
    assert states([point(100, 1.0), point(120, 0.8, run="b")]) == ["front", "front"]


def test_who_dominates_is_named_and_what_lacks_a_number_stands_nowhere() -> None:
    bare = ComparedPoint("a", "m", "cpu", "eager", 4, 1, 512, 128, "no GPU", rate=PointValue(5.0))
    found = rank_points([point(100, 1.0), point(120, 0.8, batch=2), bare])
    assert found[0] is not None
    assert found[0].by is not None
    assert found[0].by.batch == 2
    assert found[2] is None


def test_by_the_speed_of_each_sequence_small_batches_stay_on_the_front() -> None:
    small, large = point(100, 1.0), point(400, 0.5, batch=8)
    assert states([small, large]) == ["dominated", "front"]
    assert states([small, large], each=True) == ["front", "front"]
    assert pareto_front_path([small, large]) == [1]
    assert pareto_front_path([small, large], per_sequence=True) == [1, 0]


def test_a_ratios_interval_holds_both() -> None:
    found = ratio_of_values(PointValue(2.0, 1.9, 2.1), PointValue(4.0, 3.8, 4.2))
    assert found is not None
    assert found.value == 0.5
    assert found.low is not None
    assert found.high is not None
    assert 0.5 / 1.15 < found.low < 0.5 / 1.05
    assert found.low * found.high == pytest.approx(0.25), "as far down as up, on logarithms"
    assert ratio_of_values(PointValue(2.0), PointValue(4.0, 3.8, 4.2)) == PointValue(0.5, None, None)
    assert ratio_of_values(None, PointValue(1.0)) is None
    assert ratio_of_values(PointValue(1.0), PointValue(0.0)) is None


def test_run_folders_json_and_tables_say_the_same(tmp_path: Path) -> None:
    run = put(tmp_path / "run", every())
    by_folder = build_points(read_sources([run]).rows, "decode")
    assert by_folder == build_points(read_sources([run / "energy.json"]).rows, "decode")
    assert by_folder == build_points(read_sources([run / "energy.csv"]).rows, "decode")
    assert len(by_folder) == 6
    assert len(read_sources([run, run / "energy.csv"]).rows) == 6, "the same cells of the same run are one"
    assert by_folder[0].placement == "GPU 0"
    assert by_folder[0].rate == PointValue(12.0, 12 * 0.98, 12 * 1.02)


def test_what_is_varied_is_held_against_the_first_all_else_the_same(tmp_path: Path) -> None:
    paths = [put(tmp_path / "a", every()), put(tmp_path / "b", every("random:llama-1b", "energy-2", 0.25))]
    found = build_points(read_sources(paths).rows, "decode")
    by_model = compute_changes(found, "model")
    assert [change.second for change in by_model] == ["random:llama-1b"] * 6
    assert all(change.joules is not None and change.joules.value == pytest.approx(0.25) for change in by_model)
    by_batch = compute_changes(found, "batch")
    assert {change.first for change in by_batch} == {"batch 1"}
    assert len(by_batch) == 8
    assert by_batch[0].fixed == "random:llama-8b, eager"
    assert choose_compared_by(found) == "batch"


def test_two_runs_of_the_same_are_told_apart_by_run(tmp_path: Path) -> None:
    paths = [put(tmp_path / "a", every()), put(tmp_path / "b", every(run="energy-2", factor=1.01))]
    found = build_points(read_sources(paths).rows, "decode")
    by_run = compute_changes(found, "run")
    assert len(by_run) == 6
    assert all(c.joules and c.joules.low and c.joules.high and c.joules.low < 1 < c.joules.high for c in by_run)
    assert {change.fixed.rpartition(", ")[2] for change in compute_changes(found, "batch")} == {"energy-1", "energy-2"}


def test_placements_are_said_as_they_were_asked_for(tmp_path: Path) -> None:
    paths = [
        put(tmp_path / "one", result(row(1))),
        put(tmp_path / "four", result(row(4), run="b", device_map="balanced")),
        put(tmp_path / "tp", result(row(2), run="c", tp_plan="auto")),
        put(tmp_path / "split", result(row(1), run="d", max_memory='{"0": "9GiB"}')),
        put(tmp_path / "cpu", result(row(0), run="e", device="cpu")),
        put(tmp_path / "beside", result(row(2), run="g", device="cpu")),
        put(tmp_path / "server", result(row(2, mode="server"), run="f")),
    ]
    found = build_points(read_sources(paths).rows, "requests")
    assert [each.placement for each in found] == [
        "GPU 0", "GPUs 0,1,2,3 balanced", "GPUs 0,1 tensor parallel", 'GPU 0, at most {"0": "9GiB"}', "cpu",
        "cpu beside GPUs 0,1", "server on GPUs 0,1",
    ]  # fmt: skip
    assert choose_compared_by(found) == "batch", "a server's size is said otherwise"


def test_an_interval_that_tells_nothing_is_said_to() -> None:
    assert format_value(PointValue(0.17, 0.165, 0.1751)) == "0.170 (0.165–0.175)"
    assert format_value(PointValue(724.0, 0.0, 6e8)) == "724 (inconclusive)"
    assert format_value(PointValue(3900.4)) == "3,900"
    assert format_value(None) is None


def test_whole_requests_are_compared_where_phases_are_not_known() -> None:
    rows: list[dict[str, Scalar]] = [{"decode_tokens_per_s": 5.0}, {"decode_tokens_per_s": None}]
    assert choose_phase(rows[:1]) == "decode"
    assert choose_phase(rows) == "requests"


def test_mixed_origins_and_different_gpus_are_said_and_not_held_against_each_other(tmp_path: Path) -> None:
    fake = result(row(batch=8, origin="fake"), run="fake").model_copy(update={"gpu": "1 × Fake GPU"})
    found = build_points(read_sources([put(tmp_path / "a", result(row())), put(tmp_path / "b", fake)]).rows, "decode")
    shown = comparison_page(found, "decode", "batch")
    told = " ".join(
        element.text for section in shown.sections for element in section.elements if element.kind == "text"
    )
    assert "Origins are mixed (fake, real)" in told
    assert "Different GPUs (NVIDIA H200; Fake GPU)" in told
    assert shown.origin == "fake"
    assert [figure.name for figure in shown.figures] == ["pareto", "pareto_2"]


def test_requests_of_different_sizes_have_figures_of_their_own(tmp_path: Path) -> None:
    rows = [row(batch=batch, input_tokens=tokens) for tokens in (128, 2048) for batch in (1, 8)]
    shown = comparison_page(
        build_points(read_sources([put(tmp_path / "a", result(*rows))]).rows, "decode"), "decode", "batch"
    )
    assert [figure.name for figure in shown.figures] == ["pareto", "pareto_each", "pareto_2", "pareto_each_2"]
    assert "128 in and 128 out" in shown.lead


@pytest.mark.full
def test_the_command_prints_a_table_and_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    run = put(tmp_path / "run", result(row(mode="eager", batch=8), row(mode="graphs", batch=8)))
    files = [tmp_path / "p.png", tmp_path / "p.html", tmp_path / "p.md", tmp_path / "p.json", tmp_path / "all"]
    words = [str(run), "--json", *(word for file in files for word in ("-o", str(file)))]
    ran = CliRunner().invoke(COMMAND, words, catch_exceptions=False)
    assert ran.exit_code == 0
    data = json.loads(ran.stdout)
    assert [one["front"] for one in data["points"]].count("front") == 1
    assert data["of"] == "decode"
    assert len(data["files"]) == 7
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "graphs, 0.420" in files[1].read_text()
    assert (tmp_path / "all/figures/pareto.png").is_file()
    assert json.loads(files[3].read_text())["points"] == data["points"]


def test_cells_without_energy_are_shown_with_the_reason_and_nothing_is_drawn(tmp_path: Path) -> None:
    run = put(tmp_path / "run", result(row(0, energy=False)))
    ran = CliRunner().invoke(COMMAND, [str(run)], catch_exceptions=False)
    assert ran.exit_code == 0
    assert "No GPU energy is known of this cell: no GPU is metered." in " ".join(ran.stdout.split())
    with pytest.raises(BadInput, match="nothing to draw"):
        CliRunner().invoke(COMMAND, [str(run), "-o", str(tmp_path / "p.png")], catch_exceptions=False)


def test_what_cannot_be_compared_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(BadInput, match=r"holds no energy\.json"):
        read_sources([tmp_path])
    with pytest.raises(BadInput, match="is not there"):
        read_sources([tmp_path / "absent"])
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}')
    with pytest.raises(BadInput, match=r"is not an energy\.json of this version of Assay"):
        read_sources([other])
    table = tmp_path / "table.csv"
    table.write_text(
        "model,mode,batch_size,concurrency,input_tokens,output_tokens,decode_tokens_per_s\nA,eager,1,1,1,1,x\n"
    )
    with pytest.raises(BadInput, match="'x' under decode_tokens_per_s is no number"):
        build_points(read_sources([table]).rows, "decode")
    table.write_text("config_model,any_gpu_active\nA,True\n")
    with pytest.raises(BadInput, match="row 1 names no cell"):
        read_sources([table])
    table.write_text("item,price\ntea,3\n")
    with pytest.raises(BadInput, match=r"none of its columns .* so nothing of it can be compared\.$"):
        read_sources([table])
    score = put(tmp_path / "run", every()) / "ai_energy_score.csv"
    with pytest.raises(BadInput, match=r"is a table of scores \(ai_energy_score\)"):
        read_sources([score])
    with pytest.raises(BadInput, match=r"must end in \.html"):
        CliRunner().invoke(COMMAND, [str(other), "-o", "x.pdf"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("nan,,", "'nan' under decode_j_per_token is no number"),
        ("inf,1,2", "'inf' under decode_j_per_token is no number"),
        ("-3,,", "decode_j_per_token is -3 [None, None], which no measurement gives"),
        ("0,0,0", "decode_j_per_token is 0 [0.0, 0.0], which no measurement gives"),
        ("5,9,10", "decode_j_per_token is 5 [9.0, 10.0], which no measurement gives"),
    ],
)
def test_a_table_with_what_nobody_measured_is_refused_with_its_row(tmp_path: Path, cells: str, said: str) -> None:
    table = tmp_path / "table.csv"
    names = "decode_tokens_per_s,decode_j_per_token,decode_j_per_token_low,decode_j_per_token_high"
    table.write_text(
        f"model,mode,batch_size,concurrency,input_tokens,output_tokens,{names}\nA,eager,1,1,1,1,9,{cells}\n"
    )
    with pytest.raises(BadInput) as error:
        build_points(read_sources([table]).rows, "decode")
    assert str(error.value) == f"{table}, row 1: {said}."


def test_prompts_of_another_length_than_asked_for_are_compared_by_theirs() -> None:
    asked: dict[str, Scalar] = {
        "model": "A",
        "mode": "eager",
        "batch_size": 1,
        "input_tokens": 512,
        "output_tokens": 128,
    }
    for read_tokens, length in ((70, 7), (5000, 512), (0, 512)):
        (point,) = build_points([{**asked, "measured_input_tokens": read_tokens, "measured_requests": 10}], "decode")
        assert point.input_tokens == length


def test_one_bad_source_among_good_ones_is_told_and_the_rest_compared(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("[")
    found = read_sources([put(tmp_path / "run", every()), bad])
    assert len(found.rows) == 6
    assert "not valid JSON" in found.unusable[0]
    left = every().model_copy(update={"skipped": {"eager, batch 64, 512 in, 128 out": "out of memory."}})
    assert read_sources([put(tmp_path / "left", left)]).skipped == [
        "energy-1: eager, batch 64, 512 in, 128 out has no result: out of memory"
    ]
