from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.compat.energy import build_files, older_row
from assay.core.errors import BadInput
from assay.experiments.energy.result import (
    CELL_COLUMNS,
    FIGURES,
    KEY_COLUMNS,
    KNOWN_COLUMNS,
    SCORE_COLUMN,
    CsvTable,
    EnergyResult,
    add_rows,
    build_report_files,
    flatten_row,
    flatten_rows,
    format_csv_table,
    format_missing_reasons,
    format_part_counts,
    gpu_columns,
    merge_columns,
    parse_csv_table,
    score_rows,
    total_columns,
)
from assay.experiments.energy.study import build_study
from tests.experiments.energy.made_rows import gpu, result, row
from tests.experiments.energy.metered_world import World, config, gpus, options

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import SubjectFacts
    from assay.core.values import Scalar
    from assay.workloads.generation.params import Generation

SEED_NAMES = (
    "utilization_percent",
    "memory_used_mb",
    "memory_total_mb",
    "memory_percent",
    "temperature_c",
    "power_draw_w",
)


def text_of(*results: EnergyResult) -> str:
    """Return one file to which the runs were added one after another, each read anew."""
    text = ""
    for one in results:
        text = format_csv_table(
            add_rows(parse_csv_table(text.encode(), "f.csv", KNOWN_COLUMNS), flatten_rows(one), KEY_COLUMNS)
        )
    return text


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_every_gpu_has_the_older_tools_columns_and_the_most_beside_the_mean(gpus: int) -> None:
    found = flatten_row(result(row(gpus)), row(gpus))
    for number in range(gpus):
        for name in SEED_NAMES:
            assert found[f"gpu_stats_gpu_{number}_{name}"] is not None
        assert found[f"gpu_stats_gpu_{number}_power_draw_w_max"] == 250.0 + number
        assert found[f"gpu_stats_gpu_{number}_energy_j_per_request_low"] == pytest.approx((50 + number) * 0.98)
    assert f"gpu_stats_gpu_{gpus}_power_draw_w" not in found
    assert found["config_device_ids"] == ",".join(map(str, range(gpus)))
    assert all({name, f"{name}_low", f"{name}_high"} <= set(found) for name in FIGURES)


def test_totals_are_what_their_definitions_say() -> None:
    found = total_columns(row(4))
    assert found["total_avg_utilization"] == 80 + 81 + 82 + 83
    assert found["total_max_utilization"] == 93
    assert found["total_avg_memory_mb"] == 60006
    assert found["avg_utilization_per_gpu"] == 81.5
    assert found["avg_memory_per_gpu_mb"] == 15001.5
    assert found["total_max_power_w"] == 253, "the maximum over GPUs, as the older tool had it"
    assert found["peak_of_sum_power_w"] == 920
    assert found["total_energy_j"] == pytest.approx(300 * 11.7 * 128)
    assert found["any_gpu_active"] is True


def test_a_sum_is_null_where_one_gpu_does_not_tell() -> None:
    silent = row(2).model_copy(update={"gpus": (gpu(0), gpu(1, power_draw_w=None, power_draw_w_max=None))})
    found = total_columns(silent)
    assert found["total_avg_power_w"] is None
    assert found["total_max_power_w"] is None
    assert found["total_avg_utilization"] == 161
    assert gpu_columns(silent.gpus)["gpu_stats_gpu_1_power_draw_w"] is None
    asleep = row(2).model_copy(
        update={"gpus": (gpu(0, utilization_percent_max=None), gpu(1, utilization_percent_max=0.0))}
    )
    assert total_columns(asleep)["any_gpu_active"] is None
    assert total_columns(row(0))["total_avg_utilization"] is None


def test_null_is_an_empty_field_and_never_zero() -> None:
    text = text_of(result(row(0, energy=False)))
    (cells,) = csv.DictReader(io.StringIO(text))
    for name in ("decode_j_per_token", "total_energy_j", "total_avg_utilization", "gpu", "config_device_ids"):
        assert cells[name] == ""
    assert cells["decode_tokens_per_s"] == "12.0"
    assert "no GPU is metered (" in cells["missing_reasons"]
    assert "decode_j_per_token" in cells["missing_reasons"]


def test_pandas_reads_rows_of_one_and_four_gpus_under_the_right_columns(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_text(text_of(result(row(1)), result(row(4), run="energy-2"), result(row(1), run="energy-3")))
    df = pd.read_csv(file)
    assert list(df["config_device_ids"]) == ["0", "0,1,2,3", "0"]
    for number in range(4):
        column = df[f"gpu_stats_gpu_{number}_utilization_percent"]
        assert column[1] == 80 + number
        assert list(column.isna()) == [number > 0, False, number > 0]
    assert list(df["decode_j_per_token"]) == [11.7] * 3
    assert list(df["total_max_power_w"]) == [250, 253, 250]
    assert list(df["partial"]) == [False] * 3
    gpu_columns_there = [name for name in df.columns if name.startswith("gpu_stats_")]
    assert [name for name in gpu_columns_there if "gpu_0_" in name] == gpu_columns_there[: len(gpu_columns_there) // 4]
    assert df[gpu_columns_there].shape[0] == 3


def test_the_same_cell_of_the_same_run_is_one_row_and_keeps_what_others_wrote_beside_it() -> None:
    first = format_csv_table(add_rows(CsvTable(), flatten_rows(result(row(1), row(1, batch=8))), KEY_COLUMNS))
    noted = parse_csv_table(first.encode(), "f.csv", KNOWN_COLUMNS)
    noted = CsvTable((*noted.columns, "comment"), tuple({**cells, "comment": "warm room"} for cells in noted.rows))
    newer = row(1, factor=2.0)
    found = parse_csv_table(
        format_csv_table(add_rows(noted, flatten_rows(result(newer)), KEY_COLUMNS)).encode(), "f.csv", KNOWN_COLUMNS
    )
    assert [cells["batch_size"] for cells in found.rows] == ["1", "8"]
    assert float(found.rows[0]["decode_j_per_token"]) == 23.4
    assert [cells["comment"] for cells in found.rows] == ["warm room", "warm room"]
    unnamed = result(row(1), run=None)
    assert len(add_rows(found, flatten_rows(unnamed) * 2, KEY_COLUMNS).rows) == 4, (
        "a run without a name is nobody's older state"
    )


def test_columns_that_come_later_stand_beside_their_kin() -> None:
    assert merge_columns(("a", "b", "z"), ("a", "c", "b", "d")) == ("a", "c", "b", "d", "z")
    assert merge_columns(("x", "y"), ("a", "b")) == ("x", "y", "a", "b")
    older = ("config_name", "gpu_stats_gpu_0_power_draw_w", "timestamp")
    found = add_rows(CsvTable(older, (dict.fromkeys(older, "1"),)), flatten_rows(result(row(2))), KEY_COLUMNS)
    assert [name for name in found.columns if name in older] == list(older)
    assert len(set(found.columns)) == len(found.columns)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n", "another table"),
        ("name,model\nAda,T\n", "another table"),
        ("model;mode;decode_j_per_token\nA;eager;1,5\n", "semicolons"),
        ('"model"\t"mode"\t"any_gpu_active"\n', "tabs"),
        ("decode_j_per_token,model,model\n1,2,3\n", "two columns 'model'"),
        ("decode_j_per_token,model,\n1,2,3\n", "a column without a name"),
        ("decode_j_per_token,model\n1,2\n1,2,3\n1,2\n", "line 3: 3 cells under 2 columns"),
        ("decode_j_per_token,model\n1\n1,2\n", "line 2: 1 cells under 2 columns"),
        ('decode_j_per_token,model\n1,"2\n1,2\n', "garbled"),
        ("decode_j_per_token\0,model\n", "null bytes"),
    ],
)
def test_what_is_no_table_of_ours_is_refused_with_its_place(content: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_csv_table(content.encode(), "f.csv", KNOWN_COLUMNS)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(BadInput, match=r"f\.csv, line 2: not UTF-8"):
        parse_csv_table(b"decode_j_per_token,model\n1,\xff\n", "f.csv", KNOWN_COLUMNS)


@pytest.mark.parametrize("torn", ["1,2", '1,2,"cut in quo', "1", '"'])
def test_a_last_line_that_was_cut_short_is_set_aside(torn: str) -> None:
    head = "decode_j_per_token,model,notes\n1.5,A,\n"
    found = parse_csv_table((head + torn).encode(), "f.csv", KNOWN_COLUMNS)
    assert found.torn == torn
    assert [cells["model"] for cells in found.rows] == ["A"]
    assert format_csv_table(found) == head


def test_a_header_that_was_cut_short_is_set_aside_and_a_whole_last_line_needs_no_end() -> None:
    assert parse_csv_table(b"decode_j_per_to", "f.csv", KNOWN_COLUMNS) == CsvTable(torn="decode_j_per_to")
    assert len(parse_csv_table(b"decode_j_per_token,model\n1,A", "f.csv", KNOWN_COLUMNS).rows) == 1
    assert parse_csv_table(b"\n \n", "f.csv", KNOWN_COLUMNS) == CsvTable()


def test_a_byte_order_mark_and_line_ends_are_kept() -> None:
    text = "\ufeffdecode_j_per_token,model\r\n1.5,A\r\n"
    assert format_csv_table(parse_csv_table(text.encode(), "f.csv", KNOWN_COLUMNS)) == text


names = st.sampled_from(["a", "b", "c", "gpu_stats_gpu_0_x", "gpu_stats_gpu_1_x", "gpu_stats_gpu_2_x", "note"])
cells = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=6), st.just('q"u,o\nte')
)
batches = st.lists(st.lists(st.dictionaries(names, cells, min_size=1), min_size=1, max_size=3), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(batches)
def test_rows_of_any_columns_in_any_order_stay_aligned(runs: list[list[dict[str, Scalar]]]) -> None:
    text = ""
    before: tuple[str, ...] = ()
    for rows in runs:
        held = [{"decode_j_per_token": 1.0, **cells} for cells in rows]
        text = format_csv_table(add_rows(parse_csv_table(text.encode(), "f.csv", KNOWN_COLUMNS), held))
        columns = tuple(next(csv.reader(io.StringIO(text, newline=""))))
        assert [name for name in columns if name in before] == list(before), "columns that are there keep their order"
        before = columns
    found = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    asked = [cells for rows in runs for cells in rows]
    assert len(found) == len(asked)
    for there, wanted in zip(found, asked, strict=True):
        for name in before:
            value = wanted.get(name) if name != "decode_j_per_token" else 1.0
            number = isinstance(value, float) and value in {float("inf"), float("-inf")}
            shown = "" if value is None or number else " ".join(str(value).replace("\0", "").splitlines())
            assert there[name] == shown


def test_a_score_says_that_it_is_not_the_official_one() -> None:
    (scored,) = score_rows(result(row(4), task="summarization"))
    assert (scored["model"], scored["task"], scored["gpu"]) == ("random:llama-8b", "summarization", "4 × NVIDIA H200")
    assert scored[SCORE_COLUMN] == pytest.approx(11.7 * 128 / 3.6)
    assert (scored["number_of_gpus"], scored["dtype"]) == (4, "bfloat16")
    assert "Not the official" in str(scored["note"])
    (bare,) = score_rows(result(row(0, energy=False), dtype="auto"))
    assert (bare[SCORE_COLUMN], bare["dtype"], bare["task"]) == (None, None, "text_generation")
    assert "no GPU is metered" in str(bare["note"])


def test_a_score_has_the_type_of_the_weights_as_they_were_loaded() -> None:
    class Told(World):
        def _facts(self, number: int, told: Generation, why: str | None) -> SubjectFacts:
            return super()._facts(number, told, why).model_copy(update={"dtype": "bfloat16"})

    there = gpus(1)
    wanted = options(there, config())
    found = build_study(there, wanted, Told(there).measured(wanted)).result
    assert [scored["dtype"] for scored in score_rows(found)] == ["bfloat16"]
    assert flatten_rows(found)[0]["config_dtype"] == "bfloat16"


def test_an_older_row_has_the_older_names_alone_and_true_units() -> None:
    found = older_row(result(row(2)), row(2))
    assert found["summary_total_prompts"] == 300
    assert found["summary_total_tokens"] == 300 * (512 + 128)
    assert found["summary_throughput_tokens_per_second"] == 300 * 640 / 60
    assert found["energy_energy_wh"] == pytest.approx(300 * 11.7 * 128 / 3600)
    assert found["energy_emissions_g_co2eq"] is None, "no intensity was given"
    assert "decode_j_per_token" not in found


def test_a_run_leaves_json_tables_and_the_older_file() -> None:
    found = result(row(1), row(1, batch=8))
    files = {**build_report_files(found), **build_files(found)}
    assert set(files) == {"energy.json", "energy.csv", "ai_energy_score.csv", "older/results/made_results.csv"}
    assert EnergyResult.model_validate_json(files["energy.json"]) == result(row(1), row(1, batch=8))
    assert all(text.count("\n") == 3 for name, text in files.items() if name.endswith(".csv"))
    assert set(build_report_files(result())) == {"energy.json"}
    assert build_files(result()) == {}


def test_words_in_cells_are_short() -> None:
    assert format_part_counts({"a": "cuda:0", "b": "cuda:1", "c": "cuda:1"}) == "cuda:0: 1 part, cuda:1: 2 parts"
    assert (
        format_missing_reasons({"x": "no counter.", "y": "no counter", "z": "too short"})
        == "no counter (x, y); too short (z)"
    )
    assert format_part_counts(None) is None
    assert KEY_COLUMNS[1:] == CELL_COLUMNS
