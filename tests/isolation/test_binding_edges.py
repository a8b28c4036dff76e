"""Where binding tips over: one CPU, one node or one answer of the kernel more or fewer."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from typing import TYPE_CHECKING, Any

import pytest

from assay.isolation import binding
from assay.isolation.binding import (
    HeldIsolation,
    bind_memory,
    bind_process,
    bound_nodes,
    memory_limits,
    memory_policy,
    recheck_isolation,
)
from assay.isolation.placement import Allotment
from tests.isolation.test_probe import limit

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from assay.core.values import Isolation

KILOBIT = 1024
"""How many memory nodes the kernel's mask has room for."""


class Kernel:
    """Affinities of threads and a memory policy, in place of those of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, architecture: str = "x86_64") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer = 0
        self.mode = 0
        self.words: dict[int, int] = {}
        monkeypatch.setattr(platform, "machine", lambda: architecture)
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: self)

    def syscall(self, number: int, first: Any, mask: Any, *more: Any) -> int:
        """Answer set_mempolicy, whose first argument is a number, or get_mempolicy, whose first is written to."""
        given = tuple(getattr(each, "value", each) for each in more)
        if isinstance(first, int):
            self.calls.append((number, first, {at: word for at, word in enumerate(mask) if word}, len(mask), *given))
        else:
            self.calls.append((number, len(mask), *given))
            first._obj.value = self.mode
            for at, word in self.words.items():
                mask[at] = word
        if self.answer:
            ctypes.set_errno(errno.EPERM)
        return self.answer


@pytest.mark.parametrize(("architecture", "setting", "getting"), [("x86_64", 238, 239), ("aarch64", 237, 236)])
def test_the_kernel_is_told_and_asked_by_the_numbers_of_its_architecture(
    architecture: str, setting: int, getting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch, architecture)
    assert bind_memory((0, 3, 65)) is None
    assert memory_policy() == (0, ())
    words = KILOBIT // 64
    assert kernel.calls == [
        (setting, 2, {0: 0b1001, 1: 0b10}, words, KILOBIT),
        (getting, words, KILOBIT, None, 0),
    ]


def test_what_the_kernel_says_about_memory_is_read_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    kernel.mode, kernel.words = 0x8002, {0: 0b1001, 1: 0b10, 15: 1 << 63}
    assert memory_policy() == (2, (0, 3, 65, 1023))
    assert bound_nodes() == (0, 3, 65, 1023)
    kernel.mode = 3
    assert memory_policy() == (3, (0, 3, 65, 1023))
    assert bound_nodes() is None
    kernel.mode, kernel.answer = 2, -1
    assert memory_policy() is None
    assert bound_nodes() is None
    assert bind_memory((0,)) == os.strerror(errno.EPERM)


def test_on_an_unknown_architecture_the_kernel_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, "pdp11")
    assert memory_policy() is None
    assert bind_memory((0,)) == "the system call is not known on pdp11"
    assert kernel.calls == []


@pytest.mark.parametrize(
    ("policy", "codes"),
    [
        (None, ["memory_unreadable"]),
        ((2, (0, 1)), []),
        ((2, (0,)), ["memory_changed"]),
        ((3, (0, 1)), ["memory_changed"]),
        ((0, ()), ["memory_changed"]),
    ],
)
def test_memory_is_bound_where_the_kernel_says_bound_and_names_these_nodes(
    policy: tuple[int, tuple[int, ...]] | None, codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "memory_policy", lambda: policy)
    assert [one.code for one in memory_limits((0, 1))] == codes


def test_the_lowest_of_all_reasons_is_what_holds() -> None:
    held = HeldIsolation("numa").limited(
        limit("memory_refused", "cpu"), limit("shared_gpu", "none"), limit("shared_cores", "gpu")
    )
    assert (held.level, len(held.limits)) == ("none", 3)
    assert HeldIsolation("gpu").limited(limit("memory_refused", "cpu")).level == "gpu"
    assert HeldIsolation("cpu").limited() == HeldIsolation("cpu")


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Let every pinning succeed; return what was asked for."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(binding, "pin_threads", lambda wanted: asked.append(tuple(wanted)))
    return asked


def test_a_worker_is_bound_as_far_as_its_level_asks(
    pinned: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "process_cpus", lambda: (0, 1))
    monkeypatch.setattr(binding, "bind_memory", lambda _: None)
    monkeypatch.setattr(binding, "memory_policy", lambda: (2, (0,)))
    assert bind_process(Allotment(device="x", level="none", cpus=(0, 1))) == HeldIsolation("none")
    assert bind_process(Allotment(device="x", level="gpu", cpus=(0, 1))) == HeldIsolation("gpu")
    assert pinned == []
    assert bind_process(Allotment(device="x", level="cpu", cpus=(0, 1))) == HeldIsolation("cpu")
    assert bind_process(Allotment(device="x", level="cpu")) == HeldIsolation("cpu")
    assert bind_process(Allotment(device="x", level="numa", cpus=(1,), nodes=(0,))) == HeldIsolation("numa")
    assert pinned == [(0, 1), (), (1,)]
    assert bind_process(Allotment(device="x", level="full", cpus=(0,), nodes=(1,))).level == "cpu"


def test_cores_that_were_not_given_are_named_in_order(
    pinned: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "process_cpus", lambda: (0, 1))
    held = bind_process(Allotment(device="x", level="cpu", cpus=(5, 0, 3)))
    assert (held.level, [(one.code, one.cpus) for one in held.limits]) == ("none", [("cpus_missing", (3, 5))])
    assert pinned == [(5, 0, 3)]


@pytest.mark.parametrize(
    ("level", "allotted", "visible", "codes"),
    [
        ("none", {"cpus": (0,), "nodes": (9,), "gpu_uuid": "GPU-0"}, "GPU-1", []),
        ("gpu", {"cpus": (0,), "nodes": (9,), "gpu_uuid": "GPU-0"}, "GPU-0", []),
        ("gpu", {"cpus": (0,), "nodes": (9,), "gpu_uuid": "GPU-0"}, "GPU-1", ["gpu_changed"]),
        ("gpu", {"cpus": (0,), "gpu_uuid": "GPU-0"}, None, ["gpu_changed"]),
        ("gpu", {"cpus": (0,)}, "GPU-1", []),
        ("cpu", {"cpus": (0,), "nodes": (9,)}, None, ["cpus_changed"]),
        ("cpu", {"nodes": (9,)}, None, []),
        ("numa", {"cpus": (0, 1)}, None, []),
        ("numa", {"cpus": (0, 1), "nodes": (9,)}, None, ["memory_changed"]),
        ("full", {"cpus": (0, 1), "nodes": (3,)}, None, []),
    ],
)
def test_only_what_a_level_asks_for_is_looked_at_in_the_end(
    level: Isolation,
    allotted: dict[str, object],
    visible: str | None,
    codes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binding, "process_cpus", lambda: (0, 1))
    monkeypatch.setattr(binding, "memory_policy", lambda: (2, (3,)))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    allotment = Allotment.model_validate({"device": "x", "level": level, **allotted})
    assert [one.code for one in recheck_isolation(HeldIsolation(level), allotment).limits] == codes


def test_threads_that_start_while_others_are_pinned_are_pinned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([{11, 12}, {11, 13}, {11, 13}])
    asked: list[tuple[int, Collection[int]]] = []

    def pin(thread: int, wanted: Collection[int]) -> None:
        asked.append((thread, wanted))
        if thread == 12:
            raise ProcessLookupError

    monkeypatch.setattr(os, "sched_setaffinity", pin)
    monkeypatch.setattr(binding, "_threads", lambda: next(seen))
    binding.pin_threads((4, 5))
    assert (asked[0], sorted(asked[1:3]), asked[3:]) == (
        (0, (4, 5)),
        [(11, (4, 5)), (12, (4, 5))],
        [(13, (4, 5))],
    )


def test_what_any_thread_may_run_on_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    may = {0: {7}, 11: {5, 2}}

    def ask(thread: int) -> set[int]:
        if thread == 12:
            raise ProcessLookupError
        return may[thread]

    monkeypatch.setattr(os, "sched_getaffinity", ask)
    monkeypatch.setattr(binding, "_threads", lambda: {11, 12})
    assert binding.process_cpus() == (2, 5, 7)


def test_pages_are_added_up_by_node_and_none_is_not_nothing(tmp_path: Path) -> None:
    maps = tmp_path / "numa_maps"
    maps.write_text("55d0 default N0=2 N1=5\n7ff default N1=3\n")
    assert binding.pages_by_node(maps) == {0: 2, 1: 8}
    maps.write_text("55d0 default\n")
    assert binding.pages_by_node(maps) is None
