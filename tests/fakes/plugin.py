"""Fixtures for tests that need GPUs which are not there. Load it from a conftest as `tests.fakes.plugin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from tests.fakes.fake_nvml import FakeNvml, Gpu, attached, build

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import ModuleType


class MakeFakeNvml(Protocol):
    """Makes a scenario in a file of its own."""

    def __call__(
        self,
        gpus: Sequence[Gpu] | None = None,
        *,
        virtual: bool = True,
        start_s: float = 0.0,
        privileged: bool = True,
    ) -> FakeNvml:
        """Make a scenario; see `FakeNvml.create`."""


@pytest.fixture(scope="session")
def fake_nvml_library() -> Path:
    """The compiled `libnvidia-ml.so.1`."""
    return build()


@pytest.fixture
def make_fake_nvml(tmp_path: Path) -> MakeFakeNvml:
    """Makes scenarios, as many as a test asks for."""
    made: list[FakeNvml] = []

    def make(
        gpus: Sequence[Gpu] | None = None,
        *,
        virtual: bool = True,
        start_s: float = 0.0,
        privileged: bool = True,
    ) -> FakeNvml:
        path = tmp_path / f"scenario-{len(made)}.nvml"
        made.append(FakeNvml.create(path, gpus, virtual=virtual, start_s=start_s, privileged=privileged))
        return made[-1]

    return make


@pytest.fixture
def fake_nvml(make_fake_nvml: MakeFakeNvml) -> FakeNvml:
    """A machine with one Hopper, on virtual time."""
    return make_fake_nvml()


@pytest.fixture
def fake_pynvml(fake_nvml: FakeNvml) -> Iterator[ModuleType]:
    """pynvml with `fake_nvml` behind it, in this process and its children; not yet initialised."""
    with attached(fake_nvml) as pynvml:
        yield pynvml
