"""The machine as values: enough to place work on it, and to know it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, JsonValue

from assay.core.values import SCHEMA_VERSION, Value

if TYPE_CHECKING:
    from collections.abc import Iterator


class Core(Value):
    """One physical core: the logical CPUs (SMT siblings) of it that this process may use."""

    package: int
    core: int
    node: int
    cpus: tuple[int, ...] = Field(min_length=1)


class Gpu(Value):
    """One GPU as NVML names it; null for what the driver does not say."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str | None = None
    memory_mib: float | None = None
    node: int | None = Field(default=None, description="NUMA node the GPU hangs on; null: unknown.")


class Machine(Value):
    """What is here, as this process sees it. The content of ``machine.json``."""

    schema_version: int = SCHEMA_VERSION
    host: str = Field(description="A hash that tells hosts apart without naming them.")
    boot_id: str
    hostname: str | None = Field(default=None, description="Only when the user asked for it.")
    architecture: str
    kernel: str
    cpu_model: str | None
    memory_mib: float | None
    cores: tuple[Core, ...] = Field(min_length=1, description="Physical cores this process may use.")
    nodes: tuple[int, ...]
    gpus: tuple[Gpu, ...] = ()
    gpu_note: str | None = Field(default=None, description="Why there is no GPU to be seen.")
    driver: str | None = None
    versions: dict[str, str | None] = Field(default_factory=dict)
    git_commit: str | None = None
    git_dirty: bool | None = None

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every logical CPU this process may use."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @property
    def has_fake_driver(self) -> bool:
        """Whether the driver names itself a fake: numbers from it are never called real."""
        return self.driver is not None and "fake" in self.driver

    def identity(self) -> dict[str, JsonValue]:
        """Return what must be unchanged for a run to go on: the machine, its software and the code measured.

        Memory is left out: some virtual machines are given more of it while they run.
        """
        whole = self.as_json()
        passing = {"schema_version", "boot_id", "hostname", "gpu_note", "git_dirty", "memory_mib"}
        return {name: value for name, value in whole.items() if name not in passing}


def differences(before: Machine, now: Machine) -> list[str]:
    """Return in words what changed between two looks at what should be one machine."""
    return list(_changes("", before.identity(), now.identity()))


def _changes(name: str, old: JsonValue, new: JsonValue) -> Iterator[str]:
    """Go down to what differs: a changed version is named, not two long lists that begin alike."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _changes(f"{name} {key}".lstrip(), old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and any(isinstance(item, dict) for item in (*old, *new)):
        if len(old) != len(new):
            yield f"{name}: {len(old)} → {len(new)}"
            return
        for index, (was, is_now) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{name} {index}", was, is_now)
    elif old != new:
        yield f"{name}: {_brief(old)} → {_brief(new)}"


def _brief(value: JsonValue) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
