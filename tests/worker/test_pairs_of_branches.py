"""Pairs of attention in this process: both paths are put in place, compared and timed as a worker does it."""

from __future__ import annotations

from assay.core.values import Paired, Role
from assay.isolation.placement import Allotment
from assay.worker import protocol as say
from assay.worker.sequences import PairedSubjects
from assay.workloads import registry
from tests.needing import need_modules

need_modules("torch")


def test_both_branches_are_compared_and_timed_on_a_cpu() -> None:
    given = {"sequence": "64", "heads": "1", "groups": "1", "head_dim": "8"}
    branches = {"sliding_attention": {"window": "16"}, "compressed_attention": {"block": "8", "stride": "4"}}
    subjects = tuple(
        registry.resolve_subject(f"{name}@{impl}", device_kind="cpu", explicit={**given, **own})
        for name, own in branches.items()
        for impl in ("masked", "flash")
    )
    role = Role(name="pairs", subjects=subjects, devices=("cpu:0",))
    place = Allotment(device="cpu:0", level="none")
    mode = Paired(duration_s=60.0, rounds=4, parity=True)
    told = say.Prepare(role=role, rank=0, restart=0, allotment=place, all_cpus=(0,), mode=mode, seed=0)
    pairs = PairedSubjects(told, mode, "cpu:0")
    assert [facts.skipped for facts in pairs.begin()] == [None] * 4
    stretch, facts = pairs.take(say.TakeBlock(duration_s=60.0))
    assert {(series.subject, series.quantity, len(series.samples)) for series in stretch.series} == {
        (subject, "call_us", 4) for subject in range(4)
    }
    assert [each.parity.passed if each.parity else None for each in facts] == [None, True, None, True]
    assert all(each.backend for each in facts[1::2])
