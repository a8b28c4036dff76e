"""How the fake is compiled, found and shared by processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes import nvml_build
from tests.fakes.fake_nvml import FakeNvml, attached, build, hopper
from tests.fakes.nvml_layout import assertions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fakes.plugin import MakeFakeNvml

ROOT = Path(__file__).parents[2]

READ = """
import json, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({
    "driver": pynvml.nvmlSystemGetDriverVersion(),
    "count": pynvml.nvmlDeviceGetCount(),
    "energy_mj": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
    "limit_mw": pynvml.nvmlDeviceGetPowerManagementLimit(handle),
}))
"""

LIMIT = """
import pynvml
pynvml.nvmlInit()
pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 333_000)
"""

LOAD = """
import os
from tests.fakes.fake_nvml import FakeNvml, GpuProcess
fake = FakeNvml.from_env()
fake.add_process(0, GpuProcess(os.getpid()))
while fake.now_ns() == 0:
    pass
for step in range(3000):
    fake.add_load(0, 10.0, step / 100, step / 100 + 0.005)
"""

DIE_HOLDING = """
import os
from tests.fakes.fake_nvml import FakeNvml
with FakeNvml.from_env().locked():
    os._exit(7)
"""

PRELOAD = """
import sys, pathlib, pynvml
from tests.fakes.fake_nvml import FakeNvml, preload
preload(FakeNvml.open(pathlib.Path(sys.argv[1])))
pynvml.nvmlInit()
print(pynvml.nvmlSystemGetDriverVersion())
"""

INITIALISE = """
import pynvml
try:
    pynvml.nvmlInit()
except pynvml.NVMLError as error:
    print(error.value)
"""


def start(script: str, env: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=dict(env), stdout=subprocess.PIPE, text=True)


def run(script: str, env: Mapping[str, str], *arguments: str) -> str:
    with start(script, env, *arguments) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output


def test_a_fresh_process_finds_the_fake_by_its_environment(make_fake_nvml: MakeFakeNvml) -> None:
    seen = json.loads(run(READ, make_fake_nvml([hopper()] * 2).env()))
    assert (seen["driver"], seen["count"]) == ("580.00-assay-fake", 2)


def test_processes_see_one_state(fake_nvml: FakeNvml) -> None:
    first = json.loads(run(READ, fake_nvml.env()))
    fake_nvml.set_power(0, 200.0)
    fake_nvml.advance(10.0)
    run(LIMIT, fake_nvml.env())
    second = json.loads(run(READ, fake_nvml.env()))
    assert second["energy_mj"] - first["energy_mj"] == 2_000_000
    assert second["limit_mw"] == fake_nvml.gpu(0).power_limit_mw == 333_000
    assert fake_nvml.setting_calls()[0].pid != os.getpid()


def test_processes_may_add_load_at_once(fake_nvml: FakeNvml) -> None:
    loads = [start(LOAD, fake_nvml.env()) for _ in range(2)]
    while fake_nvml.gpu(0).process_count < 2:
        assert all(load.poll() is None for load in loads)
        time.sleep(0.01)
    fake_nvml.advance(1.0)
    for load in loads:
        with load:
            assert load.wait(timeout=60) == 0
    idle_j = 78.0 * 30
    assert fake_nvml.true_energy_j(0, 0.0, 30.0) == pytest.approx(idle_j + 2 * 3000 * 10.0 * 0.005)


def test_a_process_that_dies_holding_the_scenario_stops_nobody(fake_nvml: FakeNvml) -> None:
    with start(DIE_HOLDING, fake_nvml.env()) as process:
        assert process.wait(timeout=60) == 7
    fake_nvml.advance(1.0)
    assert fake_nvml.now_s() == 1.0


def test_a_preloaded_library_answers_to_the_name_of_nvml(fake_nvml: FakeNvml) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    assert run(PRELOAD, environment, str(fake_nvml.path)).strip() == "580.00-assay-fake"


@pytest.mark.parametrize("content", [None, b"", b"not a scenario"])
def test_without_a_scenario_there_is_no_driver(fake_nvml: FakeNvml, tmp_path: Path, content: bytes | None) -> None:
    other = tmp_path / "other"
    if content is not None:
        other.write_bytes(content)
    environment = fake_nvml.env() | {"ASSAY_FAKE_NVML": str(other)}
    driver_not_loaded, version_mismatch = 9, 18
    assert int(run(INITIALISE, environment)) == (driver_not_loaded if content is None else version_mismatch)


def test_one_process_may_change_scenarios(make_fake_nvml: MakeFakeNvml) -> None:
    """Even when the code under test forgot to shut NVML down."""
    counts = []
    for count in (1, 3, 2):
        with attached(make_fake_nvml([hopper()] * count)) as nvml:
            nvml.nvmlInit()
            nvml.nvmlInit()
            counts.append(nvml.nvmlDeviceGetCount())
    assert counts == [1, 3, 2]


def test_a_new_initialisation_reads_the_environment_again(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml()) as nvml:
        nvml.nvmlInit()
        os.environ["ASSAY_FAKE_NVML"] = str(make_fake_nvml([hopper()] * 5).path)
        nvml.nvmlInit()
        assert nvml.nvmlDeviceGetCount() == 5


def test_detached_pynvml_is_as_it_was_and_nothing_hides_a_real_nvml(fake_nvml: FakeNvml) -> None:
    import pynvml

    before, environment = pynvml.nvmlLib, dict(os.environ)
    with attached(fake_nvml) as nvml:
        nvml.nvmlInit()
    assert pynvml.nvmlLib is before
    assert dict(os.environ) == environment
    assert str(build()) not in Path("/proc/self/maps").read_text()


def test_every_function_of_the_fake_is_one_that_pynvml_calls(fake_nvml_library: Path) -> None:
    import pynvml

    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(fake_nvml_library)], capture_output=True, text=True, check=True
    )
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text()))
    exported = set(re.findall(r"\bnvml\w+", listing.stdout)) - {"nvmlInit", "nvmlInit_v2"}
    assert len(exported) > 80
    assert exported <= called


def test_the_library_is_compiled_once(tmp_path: Path) -> None:
    library = build(tmp_path)
    compiled_at = library.stat().st_mtime_ns
    assert build(tmp_path) == library
    assert library.stat().st_mtime_ns == compiled_at
    assert [entry.name for entry in tmp_path.iterdir()] == [library.parent.name]


def test_a_layout_that_python_and_c_see_differently_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: Any = assertions().replace("offsetof(gpu_t, uuid) == 96", "offsetof(gpu_t, uuid) == 95")
    monkeypatch.setattr(nvml_build, "assertions", lambda: wrong)
    with pytest.raises(RuntimeError, match=r"gpu_t\.uuid"):
        build(tmp_path)
