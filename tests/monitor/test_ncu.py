"""What ncu prints is read whatever its form, and every way in which it refuses is told in a sentence with its cure."""

from __future__ import annotations

import pytest

from assay.monitor.kernel_trace import ncu
from tests.monitor import ncu_texts as said

READ, WRITTEN = ncu.SYSMEM_READ, ncu.SYSMEM_WRITE
DRAM = ncu.PERCENTAGES["dram_utilisation_percent"]
OCCUPANCY = ncu.PERCENTAGES["achieved_occupancy_percent"]


def test_the_raw_page_is_read_with_its_units_and_what_is_not_available_is_left_out() -> None:
    softmax, gemm, fill = ncu.read_counters(said.WIDE)
    assert [softmax.name, gemm.name, fill.name] == [said.SOFTMAX, said.GEMM, said.ELEMENTWISE]
    assert softmax.metrics[ncu.DURATION] == pytest.approx(41.184e-6)
    assert softmax.metrics[READ] == 1024
    assert softmax.metrics[DRAM] == 81.52
    assert DRAM not in fill.metrics
    assert "lts__t_sector_hit_rate.pct" not in fill.metrics
    assert fill.metrics[OCCUPANCY] == 70


def test_the_details_page_is_read_metric_by_metric() -> None:
    softmax, gemm = ncu.read_counters(said.LONG)
    assert softmax.metrics == pytest.approx({DRAM: 81.52, ncu.DURATION: 41.18e-6, READ: 1020})
    assert gemm.metrics == {OCCUPANCY: 18.02}


def test_text_without_a_table_holds_no_counters() -> None:
    assert ncu.read_counters(said.PERMISSION) == []
    assert ncu.read_counters("") == []
    assert ncu.read_counters(said.WIDE.splitlines()[5]) == []


def test_a_table_that_was_cut_off_is_read_to_its_last_whole_row() -> None:
    assert len(ncu.read_counters(said.WIDE[:-40])) == 2


def test_counters_become_columns_and_system_memory_is_told_as_a_share_of_its_link() -> None:
    softmax, _, fill = ncu.read_counters(said.WIDE)
    link = ncu.link_bytes_per_s(5, 16)
    assert link == pytest.approx(63.0e9, rel=1e-3)
    columns = ncu.counter_columns(softmax, link)
    assert columns["sm_efficiency_percent"] == 97.05
    assert columns["sysmem_read_bytes"] == 1024 * 32
    assert columns["sysmem_utilisation_percent"] == pytest.approx(100 * 1024 * 32 / 41.184e-6 / 63.008e9)
    assert ncu.counter_columns(softmax, None)["sysmem_utilisation_percent"] is None
    assert ncu.counter_columns(fill, link)["dram_utilisation_percent"] is None


def test_an_unknown_link_carries_an_unknown_amount() -> None:
    assert ncu.link_bytes_per_s(None, 16) is None
    assert ncu.link_bytes_per_s(99, 16) is None
    assert ncu.link_bytes_per_s(5, None) is None


@pytest.mark.parametrize(
    ("text", "reason", "fix"),
    [
        (said.PERMISSION, "only administrators", "NVreg_RestrictProfilingToAdminUsers=0"),
        (said.HELD, "DCGM", "dcgmi profile --pause"),
        (said.UNKNOWN_CHIP, "does not know this GPU", "--list-chips"),
        (said.UNKNOWN_OPTION, "does not know an option", "newer"),
        (said.NOT_LOADED, "cannot load", None),
        (said.NOTHING, "saw no kernel", None),
        (said.OTHER, "ncu says: The application returned an error code (1)", None),
        (f"the program waits for a lock file\n{said.OTHER}", "returned an error code (1)", None),
        ("", "ended with exit code 3 and printed no table", None),
    ],
)
def test_a_refusal_is_told_with_what_mends_it(text: str, reason: str, fix: str | None) -> None:
    refusal = ncu.diagnose_failure(text, 3)
    assert reason in refusal.reason
    assert "\n" not in refusal.reason
    assert (refusal.fix is None) == (fix is None)
    assert fix is None or fix in str(refusal.fix)


def test_metrics_that_a_chip_lacks_are_found_in_its_complaint() -> None:
    assert ncu.unknown_metrics(said.UNKNOWN_METRIC, ncu.METRICS) == {DRAM}
    assert ncu.unknown_metrics(said.UNKNOWN_METRICS, ncu.METRICS) == {READ, WRITTEN}
    assert ncu.unknown_metrics(said.PERMISSION, ncu.METRICS) == set()


def test_versions_are_read_and_those_that_are_too_old_are_known() -> None:
    assert ncu.parse_version(said.VERSION) == "2025.3"
    assert not ncu.is_too_old("2025.3")
    assert ncu.parse_version(said.OLD_VERSION) == "2019.5"
    assert ncu.is_too_old("2019.5")
    assert ncu.parse_version("no such thing") is None
