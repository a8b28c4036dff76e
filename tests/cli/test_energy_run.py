"""``assay energy run`` with real processes: GPUs that a fake NVML lists, a server that plays one, a tiny model."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.fakes.fake_nvml import NOT_SUPPORTED, hopper
from tests.workloads.openai_server import FakeServer, Talk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.fake_nvml import FakeNvml
    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay, Ran

pytestmark = pytest.mark.full

OTHERS_W = 300.0
"""What a GPU draws that is not of the run; whoever counts it is far off."""
LONG_S = 600.0
STEP_S = 0.01

SERVED = """
backend: {{type: openai, model: tiny, endpoint: "{url}", device_ids: {ids}}}
scenario: {{input_tokens: 16, output_tokens: 8, concurrency: 2, repeats: {repeats}, window_s: 2.2, precision: 0.5}}
reporter: {{type: csv, output_file: all.csv}}
"""
TINY = """
backend: {model: "random:llama-tiny", type: pytorch, device: cpu}
scenario: {batch_sizes: [1, 2], input_tokens: 12, output_tokens: 4, repeats: 1, window_s: 2.2, precision: 0.5}
metrics: {gpus: [1], carbon_g_per_kwh: 400}
reporter: [{type: csv, output_file: tiny.csv}, {type: ai_energy_score, output_file: score.csv}]
"""


def slowly(talk: Talk) -> None:
    """Answer as a good server does, a token at a time."""
    talk.role()
    for _ in range(talk.asked):
        time.sleep(STEP_S)  # it stands for the work of a model
        talk.token()
    talk.finish()
    if talk.body.get("stream_options"):
        talk.event(choices=[], **talk.usage)
    talk.done()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    found = FakeServer()
    found.answer = slowly
    yield found
    found.close()


def drawing(make_fake_nvml: MakeFakeNvml, gpus: int) -> FakeNvml:
    """Return so many fake GPUs, each of which draws another power, and one more, of eight, that is not of the run."""
    fake = make_fake_nvml([hopper() for _ in range(min(8, gpus + 1))], virtual=False)
    now_s = fake.now_ns() / 1e9
    for gpu in range(gpus):
        fake.add_load(gpu, 20.0 * (gpu + 1), now_s, now_s + LONG_S)
    if gpus < fake.gpu_count:
        fake.add_load(gpus, OTHERS_W, now_s, now_s + LONG_S)
    return fake


def served(assay: Assay, workplace: Path, server: FakeServer, fake: FakeNvml, ids: list[int], **changes: Any) -> Ran:
    told = {"repeats": 1, **changes}
    (workplace / "served.yaml").write_text(SERVED.format(url=server.url, ids=ids, **told))
    return assay("energy", "run", "served.yaml", "--json", **fake.env())


def energy_of(workplace: Path) -> dict[str, Any]:
    return dict(json.loads((workplace / "runs/latest/energy.json").read_text()))


def records_of(workplace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workplace / "runs/latest/records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_energy_is_that_of_the_gpus_named_and_of_no_other_each_in_columns_of_its_own(
    assay: Assay, workplace: Path, server: FakeServer, make_fake_nvml: MakeFakeNvml, gpus: int
) -> None:
    fake = drawing(make_fake_nvml, gpus)
    ran = served(assay, workplace, server, fake, list(range(gpus)))
    assert ran.code == 0, ran.err
    (row,) = energy_of(workplace)["rows"]
    assert row["origin"] == "fake"
    assert [gpu["gpu"] for gpu in row["gpus"]] == list(range(gpus))
    (record,) = records_of(workplace)
    for stage in record["stages"]:
        window_s = stage["start_ns"] / 1e9, stage["end_ns"] / 1e9
        true_j = sum(fake.true_energy_j(gpu, *window_s) for gpu in range(gpus))
        assert stage["energy"]["low"] <= true_j <= stage["energy"]["high"], stage["energy_note"]
    told = row["figures"]["j_per_output_token"]
    watts = sum(fake.true_power_w(gpu, fake.now_ns() / 1e9) for gpu in range(gpus))
    rate = row["figures"]["output_tokens_per_s"]["value"]
    assert told["value"] == pytest.approx(watts / rate, rel=0.15)
    table = pd.read_csv(workplace / "all.csv")
    assert {f"gpu_stats_gpu_{gpu}_power_draw_w" for gpu in range(gpus)} <= set(table.columns)
    assert f"gpu_stats_gpu_{gpus}_power_draw_w" not in table.columns
    for gpu in range(gpus):
        drawn_w = fake.true_power_w(gpu, fake.now_ns() / 1e9)
        assert table[f"gpu_stats_gpu_{gpu}_power_draw_w"][0] == pytest.approx(drawn_w, rel=0.05)


def test_a_gpu_that_is_lost_midway_leaves_what_was_measured_before_and_one_without_power_leaves_the_others(
    assay: Assay, workplace: Path, server: FakeServer, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = drawing(make_fake_nvml, 2)
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"):
        fake.fail(name, NOT_SUPPORTED, gpu=1)
    for field in (83, 185, 186):
        fake.fail_field(1, field)
    ran = served(assay, workplace, server, fake, [0, 1])
    assert ran.code == 0, ran.err
    (row,) = energy_of(workplace)["rows"]
    assert row["figures"]["j_per_output_token"] is None
    assert row["missing_reasons"]["j_per_output_token"]
    assert row["figures"]["output_tokens_per_s"]["value"] > 0
    assert row["gpus"][0]["power_draw_w"] is not None
    assert row["gpus"][1]["power_draw_w"] is None
    assert row["gpus"][1]["utilization_percent"] is not None

    def lose() -> None:
        while len([talk for talk in server.requests if talk.of_load]) < before + 20 and not server.closing.is_set():
            time.sleep(0.01)
        fake.lose(1)

    before = len([talk for talk in server.requests if talk.of_load])
    losing = threading.Thread(target=lose)
    losing.start()
    ran = served(assay, workplace, server, fake, [0, 1], repeats=2)
    losing.join()
    assert ran.code == 4, ran.err
    assert "GPU" in ran.err or "cuda:1" in ran.err
    found = energy_of(workplace)
    assert all(row["partial"] for row in found["rows"])
    assert records_of(workplace)[0]["stages"]


def test_missing_gpus_stop_the_run_unless_the_rest_will_do(
    assay: Assay, workplace: Path, server: FakeServer, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = drawing(make_fake_nvml, 1)
    ran = served(assay, workplace, server, fake, [0, 5])
    assert (ran.code, server.requests) == (3, [])
    assert "GPU 5" in ran.err or "cuda:5" in ran.err
    (workplace / "served.yaml").write_text(SERVED.format(url=server.url, ids=[0, 5], repeats=1))
    ran = assay("energy", "run", "served.yaml", "--allow-missing", "--json", **fake.env())
    assert ran.code == 0, ran.err
    (row,) = energy_of(workplace)["rows"]
    assert [gpu["gpu"] for gpu in row["gpus"]] == [0]


def test_a_tiny_model_is_measured_phase_by_phase_and_its_joules_are_those_of_the_metered_gpu(
    assay: Assay, workplace: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = drawing(make_fake_nvml, 1)
    (workplace / "tiny.yaml").write_text(TINY)
    ran = assay("energy", "run", "tiny.yaml", "--json", **fake.env())
    assert ran.code == 0, ran.err
    found = energy_of(workplace)
    assert [row["cell"]["batch"] for row in found["rows"]] == [1, 2]
    for row in found["rows"]:
        figures = row["figures"]
        for name in ("decode_j_per_token", "prefill_j_per_token", "j_per_request", "carbon_g_per_1000_requests"):
            assert figures[name]["low"] <= figures[name]["value"] <= figures[name]["high"], name
        watts = fake.true_power_w(1, fake.now_ns() / 1e9)
        assert figures["decode_j_per_token"]["value"] == pytest.approx(
            watts / figures["decode_tokens_per_s"]["value"], rel=0.15
        )
        assert figures["wh_per_1000_requests"]["value"] == pytest.approx(figures["j_per_request"]["value"] / 3.6)
        assert figures["ttft_ms"]["value"] > 0
    table = pd.read_csv(workplace / "tiny.csv")
    assert list(table["batch_size"]) == [1, 2]
    assert (workplace / "score.csv").read_text().count("\n") == 3
    report = (workplace / "runs/latest/report.md").read_text()
    assert "fake" in report
    for command in (("report", "runs/latest"), ("energy", "compare", "runs/latest", "--json")):
        assert assay(*command).code == 0, command
