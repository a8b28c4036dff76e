"""Helion's tuner: its log is read as it writes it, and what cannot be done here is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.core.values import Subject, Tuner
from assay.tuners import helion
from assay.tuners.base import TuningJob
from assay.tuners.helion import NOT_FINISHED, parse_config, parse_search_log
from assay.workloads import kernel_support, registry
from assay.workloads.kernel_support import config_to_params, params_to_config
from tests.fakes.stub_helion import install_stub_helion

LOG = Path(__file__).with_name("helion_search.csv").read_text()
"""Written by Helion 1.0.0 in a search of ours."""


def helion_is_here() -> bool:
    try:
        return bool(version("helion"))
    except PackageNotFoundError:
        return False


needs_helion = pytest.mark.skipif(not helion_is_here(), reason="Helion is not installed here")


def test_a_log_gives_each_configuration_once_with_its_time_or_why_it_has_none() -> None:
    tried = parse_search_log(LOG)
    assert [each.time_us for each in tried] == [135361.5, 45759.492, None, 36978.386, 22000.085]
    assert tried[2].reason is not None
    assert tried[2].reason.startswith("Helion says error")
    assert tried[0].config["block_sizes"] == "[16, 16, 16]"
    assert tried[0].config["range_flattens"] == "[null, null]"


def test_the_log_of_a_search_that_was_cut_off_tells_what_was_begun() -> None:
    lines = LOG.splitlines(keepends=True)
    assert [each.reason for each in parse_search_log("".join(lines[:2]))] == [NOT_FINISHED]
    assert len(parse_search_log("".join([*lines[:3], lines[3][:20]]))) == 1
    assert parse_search_log(lines[0]) == ()


def test_columns_that_later_versions_put_before_do_no_harm() -> None:
    later = "run_id,timestamp_s,config_id,generation,status,perf_ms,compile_time_s,config\n"
    later += 'a1b2,1.31,c3d4,0,ok,0.015520,0.83,"Config(block_sizes=[32], num_warps=4)"\n'
    (tried,) = parse_search_log(later)
    assert tried.config == {"block_sizes": "[32]", "num_warps": "4"}
    assert tried.time_us == pytest.approx(15.52)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n1,2\n", "Helion's log has no column 'status'; those it has: a, b"),
        ("", "Helion's log has no column 'status'; those it has: none"),
        ("status,perf_ms,config\nok,fast,Config(a=1)\n", "Helion's log has a time of 'fast'"),
        ("status,perf_ms,config\nok,1.0,nonsense\n", "a configuration that cannot be read: 'nonsense'"),
        ('status,perf_ms,config\nok,1.0,"Config(a=exit())"\n', "a configuration that cannot be read"),
    ],
)
def test_what_is_no_log_is_refused_in_words(text: str, reason: str) -> None:
    with pytest.raises(TrialFailed) as caught:
        parse_search_log(text)
    assert reason in str(caught.value)


def test_a_configuration_survives_being_kept_as_plain_values() -> None:
    config = parse_config("Config(block_sizes=[64, 32], indexing=['pointer', 'block_ptr'], maxnreg=None, num_warps=8)")
    assert params_to_config(config_to_params(config)) == config
    with pytest.raises(BadInput, match=r"block_sizes is a setting of Helion's as JSON text"):
        params_to_config({"block_sizes": "64, 32"})


def test_the_time_of_the_choice_is_the_logs_or_else_the_best_that_was_seen() -> None:
    tried = parse_search_log(LOG)
    assert helion.chosen_time_us(tried[1].config, tried, 9.0) == 45759.492
    assert helion.chosen_time_us({"block_sizes": "[32, 32, 16]"}, tried, 9.0) == 9000.0
    assert helion.chosen_time_us({"block_sizes": "[32, 32, 16]"}, tried, None) == 22000.085
    assert helion.chosen_time_us({}, (), None) is None


def job(name: str = "softmax", impl: str = "helion", device: str = "cpu:0") -> TuningJob:
    return TuningJob(Subject(workload=name, impl=impl), Tuner(name="helion", budget_s=1), device, seed=0)


def test_what_is_not_written_in_helion_is_refused() -> None:
    with pytest.raises(BadInput, match="Helion tunes kernels in Helion, and softmax@numpy is none"):
        helion.tune(job(impl="numpy"))


def test_without_helion_or_with_one_too_old_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(kernel_support, "version", missing)
    with pytest.raises(MachineCannot, match=r"Helion is not installed here; it comes with gpu-assay\[helion\]"):
        helion.tune(job())
    monkeypatch.setattr(kernel_support, "version", lambda name: "0.3.3")
    with pytest.raises(MachineCannot, match=r"Helion 0\.3\.3 is too old; 1\.0 or later is needed"):
        helion.tune(job())


def test_a_helion_that_does_not_fit_the_pytorch_that_is_here_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "helion.py").write_text("from torch import no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "helion", raising=False)
    monkeypatch.setattr(kernel_support, "version", lambda name: "9.1.0" if name == "helion" else "2.11.0")
    with pytest.raises(MachineCannot, match=r"cannot be imported here: .* \(Helion 9\.1\.0 with PyTorch 2\.11\.0; "):
        kernel_support.import_helion()


SEARCH = """
import json
from assay.core.values import Subject
from assay.tuners import base, helion
from assay.workloads.kernel_support import HelionProblem

found = helion.search_configs(HelionProblem("softmax", (), {"static_shapes": True}), seed=7, budget_s=3.0)
subject = Subject(workload="softmax", impl="helion")
print(json.dumps({
    "config": found.config, "time_us": found.time_us, "tuning_s": found.tuning_s, "version": found.version,
    "tried": [tried.time_us for tried in found.tried], "notes": found.notes, "reason": found.reason,
    "least_s": base.shortest_search_s("helion"),
    "tunes": [base.can_tune(name, subject) for name in ("helion", "pick", "triton", "command")],
}))
"""


@pytest.mark.full
@pytest.mark.parametrize(("version", "least_s"), [("1.0.0", 35.0), ("1.1.0", 0.0)])
def test_a_search_over_helions_interface_gives_its_choice_and_says_what_it_takes(
    tmp_path: Path, version: str, least_s: float
) -> None:
    path = f"{install_stub_helion(tmp_path, version)}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELION_")}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["config"] == {"block_sizes": "[32]", "num_warps": "8"}
    assert found["time_us"] == pytest.approx(15.0)
    assert found["tried"] == pytest.approx([20.0, 15.0, 30.0])
    assert (found["tuning_s"], found["version"], found["reason"]) == (45.0, version, None)
    assert (helion.NO_BUDGET_NOTE in found["notes"]) == (least_s > 0)
    assert "1 of 4 configurations did not compile or run" in found["notes"]
    assert found["least_s"] == least_s
    assert found["tunes"] == [True, False, False, True]


@needs_helion
def test_a_cpu_is_refused_and_so_is_an_effort_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineCannot, match="Helion tunes compiled kernels on a GPU, not cpu:0"):
        helion.tune(job())
    monkeypatch.setenv("HELION_AUTOTUNE_EFFORT", "none")
    with pytest.raises(BadInput, match="HELION_AUTOTUNE_EFFORT is none"):
        helion.search_configs(kernel_support.HelionProblem("softmax", (), {}), seed=0, budget_s=1)


CHECK = """
import json, sys
from assay.workloads import registry
for name, params in json.loads(sys.argv[1]):
    workload = registry.find_workload(name, "helion")
    ready = workload.prepare({**workload.defaults("cpu"), **params}, None, device="cpu:0", seed=3)
    found = ready.check()
    print(json.dumps([found.passed, found.error, sorted(workload.device_kinds), ready.launched_kernels is None]))
"""


@needs_helion
def test_its_kernels_are_right_under_its_interpreter() -> None:
    sizes = [("softmax", {"rows": 5, "cols": 33}), ("gemm", {"m": 37, "n": 51, "k": 29})]
    problems: list[tuple[str, dict[str, Any]]] = [
        (name, {**each, "dtype": dtype}) for name, each in sizes for dtype in kernel_support.HELION_DTYPES
    ]
    done = subprocess.run(
        [sys.executable, "-c", CHECK, json.dumps(problems)],
        env={**os.environ, "HELION_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(problems)
    assert all(passed and kinds == ["cpu", "cuda"] and unseen for passed, _, kinds, unseen in told), told


@needs_helion
@pytest.mark.parametrize("name", ["softmax", "gemm"])
def test_its_kernels_become_code_in_a_configuration_that_was_kept(name: str) -> None:
    workload: Any = registry.find_workload(name, "helion")
    bound = workload.helion_problem(workload.defaults("cpu"), device="cpu:0", seed=0).bound()
    kept = config_to_params(dict(bound.config_spec.default_config()))
    assert f"def _helion_{name}(" in bound.to_triton_code(params_to_config(kept))
    with pytest.raises(BadInput, match="is not a configuration of this Helion kernel"):
        kernel_support._set_config(bound, {"block_sizes": [16] * 7})
