"""Assay's own tuner: what it chooses works, is right, and fits the budget; wrong and broken ones never win."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.errors import BadInput
from assay.core.results import Check
from assay.core.values import Command, Subject, Tuner
from assay.tuners import pick
from assay.tuners.base import TuningJob
from assay.workloads import base, numpy_support, registry
from assay.workloads.base import PreparedWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Params

SMALL = {"softmax": {"rows": 64, "cols": 128}, "gemm": {"m": 64, "n": 64, "k": 64}, "flash_attention": {"sequence": 64}}


def subject(name: str, impl: str = "numpy") -> Subject:
    params = {**registry.find_workload(name, impl).defaults(), **SMALL.get(name, {})}
    return Subject(workload=name, impl=impl, params=params)


def job(subject: Subject, budget_s: float = 1.0) -> TuningJob:
    return TuningJob(subject, Tuner(name="pick", budget_s=budget_s), "cpu:0", seed=1)


@pytest.mark.parametrize("name", ["softmax", "gemm", "flash_attention"])
def test_every_numpy_workload_has_several_configurations_to_choose_from(name: str) -> None:
    workload = registry.find_workload(name, "numpy")
    configs = workload.configs(workload.defaults())
    assert len(configs) >= 4
    assert len({str(config) for config in configs}) == len(configs)


def test_it_picks_one_of_the_configurations_and_tells_of_all_it_tried() -> None:
    workload, wanted = registry.find_workload("softmax", "numpy"), subject("softmax")
    found = pick.tune(job(wanted))
    configs = list(workload.configs(wanted.params))
    assert found.config in configs
    assert found.reason is None
    assert found.time_us is not None
    assert {str(tried.config) for tried in found.tried} == {str(config) for config in configs}
    assert all(tried.time_us is not None for tried in found.tried)
    assert "of the best with a probability of" in found.notes[0]


class Stub:
    """A workload whose configurations are told how to behave."""

    name = "stub"
    impl = "test"
    device_kinds = frozenset({"cpu"})
    summary = "stub"

    def __init__(self, *behaviours: str) -> None:
        self.behaviours = behaviours

    def defaults(self, device_kind: str = "cpu") -> Params:
        return {}

    def configs(self, params: Params) -> Sequence[Params]:
        return [{"behaviour": each} for each in self.behaviours]

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        behaviour = str((config or {})["behaviour"])
        if behaviour == "does not fit":
            raise MemoryError("too large")
        rounds = {"slow": 200, "wrong": 1}.get(behaviour, 20)
        error = 1.0 if behaviour == "wrong" else 0.0

        def call() -> None:
            for _ in range(rounds):
                np.sqrt(2.0)

        return PreparedWorkload(call=call, check=lambda: Check(error=error, tolerance=0.1, measure="error"))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub("slow", "does not fit", "right", "wrong")
    monkeypatch.setattr(registry, "find_workload", lambda name, impl: made)
    return made


def test_a_configuration_that_is_wrong_or_does_not_run_never_wins_and_says_why(stub: Stub) -> None:
    found = pick.tune(job(Subject(workload="stub", impl="test")))
    assert found.config == {"behaviour": "right"}
    reasons = {tried.config["behaviour"]: tried.reason for tried in found.tried}
    assert reasons["does not fit"] == "MemoryError: too large"
    assert reasons["wrong"] == "its output is wrong: the error is 1, more than 0.1"
    assert reasons["slow"] is None


def test_without_a_working_configuration_there_is_none_and_a_reason(stub: Stub) -> None:
    stub.behaviours = ("wrong", "does not fit")
    found = pick.tune(job(Subject(workload="stub", impl="test")))
    assert (found.config, found.time_us, len(found.tried)) == (None, None, 2)
    assert found.reason is not None
    assert found.reason.startswith("no configuration works; of the first: its output is wrong")


def test_configurations_that_do_not_fit_the_budget_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pick, "PREPARING_SHARE", 0.0)
    found = pick.tune(job(subject("gemm"), budget_s=0.2))
    assert found.config == registry.find_workload("gemm", "numpy").configs(subject("gemm").params)[0]
    assert "configurations were not tried" in found.notes[-1]


def test_what_has_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(BadInput, match="cpu_hog@python has no configurations to choose from"):
        pick.tune(job(Subject(workload="cpu_hog", impl="python", params={"threads": 1})))
    with pytest.raises(BadInput, match="a command has no configurations"):
        pick.tune(job(Subject(workload="true", impl="command", command=Command(argv=("true",)))))


def test_configurations_of_one_problem_share_their_data_within_the_block_only() -> None:
    def drawn() -> numpy_support.Floats:
        return numpy_support.draw_array("normal", (4, 4), "float32", 1)

    with base.sharing_data():
        assert drawn() is drawn()
        assert drawn() is not numpy_support.draw_array("normal", (4, 4), "float32", 2)
    assert drawn() is not drawn()


@pytest.mark.parametrize("name", ["softmax", "gemm", "flash_attention"])
def test_every_configuration_is_right_also_with_shared_data(name: str) -> None:
    workload, params = registry.find_workload(name, "numpy"), subject(name).params
    with base.sharing_data():
        ready = [workload.prepare(params, config, device="cpu:0", seed=0) for config in workload.configs(params)]
        assert all(each.check is not None and each.check().passed for each in ready)
