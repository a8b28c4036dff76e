"""The machine as a page: what is here, what holds, what to mend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Finding
    from assay.machine.model import Gpu, Machine

_TONES: dict[str, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}
_TOPICS = {
    "isolation": "Isolation",
    "noise": "What would make timings noisy",
    "clock": "The clock itself",
    "gpus": "GPUs",
    "software": "Software",
    "tools": "Tools",
    "permissions": "Permissions",
}


def doctor_page(machine: Machine, findings: tuple[Finding, ...], yaml: str | None) -> Page:
    """Return all that the doctor found, what to mend first."""
    sections = [Section(title="What to mend", elements=(_mend(findings),)), *_topics(findings)]
    sections.append(Section(title="The machine", elements=(_cpu(machine), *_gpus(machine))))
    if yaml is not None:
        text = "Multi-GPU inference, ready to use (each GPU was touched and answered):\n\n" + yaml
        sections.append(Section(title="Configuration", elements=(Text(text=text),)))
    return Page(
        title="assay doctor",
        lead=lead(findings),
        lead_tone="plain",
        sections=tuple(sections),
        facts=(("kernel", machine.kernel), ("versions", _versions(machine))),
        origin="fake" if machine.has_fake_driver else "real",
    )


def lead(findings: tuple[Finding, ...]) -> str:
    """Return the diagnosis in one sentence."""
    level, devices = next(((f.facts["level"], f.facts["devices"]) for f in findings if "level" in f.facts), ("none", 1))
    wanting = [f for f in findings if f.verdict == "no" and f.facts.get("fix")]
    noisy = sum(f.facts["topic"] in {"noise", "clock"} for f in wanting)
    other = sum(f.facts["topic"] == "gpus" for f in wanting)
    noise = f"{noisy} thing{'s' if noisy > 1 else ''} would make timings noisy" if noisy else "nothing is noisy"
    more = f"; the GPUs give {other} reason{'s' if other > 1 else ''} for a look" if other else ""
    at_once = f" for {devices} devices at once" if isinstance(devices, int) and devices > 1 else ""
    return f"Isolation up to level {level!r} holds here{at_once}; {noise}{more}."


def _mend(findings: tuple[Finding, ...]) -> Element:
    rows = [(f.claim, f.reason, _fix(f)) for f in findings if f.verdict != "yes" and f.facts.get("fix")]
    if not rows:
        return Text(text="Nothing.", tone="good")
    columns = tuple(Column(title=title) for title in ("does not hold", "because", "to mend it"))
    return Table(title="Each with its fix", columns=columns, rows=tuple(rows))


def _fix(finding: Finding) -> str | None:
    fix = finding.facts.get("fix")
    return fix if isinstance(fix, str) else None


def _topics(findings: tuple[Finding, ...]) -> list[Section]:
    sections: list[Section] = []
    for topic, title in _TOPICS.items():
        chosen = [f for f in findings if f.facts["topic"] == topic]
        if chosen:
            table = Table(
                title="Claims",
                columns=(Column(title="claim"), Column(title="holds"), Column(title="seen")),
                rows=tuple((f.claim, f.verdict, f.reason) for f in chosen),
                tones=tuple(_TONES[f.verdict] for f in chosen),
            )
            sections.append(Section(title=title, elements=(table,)))
    return sections


def _pairs(title: str, pairs: list[tuple[str, Cell]]) -> Table:
    return Table(title=title, columns=(Column(title="what"), Column(title="is")), rows=tuple(pairs))


def _cpu(machine: Machine) -> Table:
    quota = machine.limits.cpu_quota
    return _pairs(
        "CPU and memory",
        [
            ("model", machine.cpu_model or machine.architecture),
            ("physical cores we may use", len(machine.cores)),
            ("logical CPUs we may use", " ".join(map(str, machine.cpus))),
            ("memory nodes", len(machine.nodes) or None),
            ("memory", None if machine.memory_mib is None else f"{machine.memory_mib / 1024:.1f} GiB"),
            ("quota", None if quota is None else f"{quota:g} CPUs"),
            ("virtual machine", machine.hypervisor),
            ("container", machine.container),
        ],
    )


def _gpus(machine: Machine) -> list[Element]:
    if not machine.gpus:
        return [Text(text=f"No GPU: {machine.gpu_note or 'none is to be seen'}.")]
    titles = ("GPU", "name", "UUID", "memory", "node", "power limit", "SM clock", "temperature")
    table = Table(
        title=f"GPUs, driver {machine.driver}, CUDA up to {machine.cuda_driver or 'unknown'}",
        columns=tuple(Column(title=title) for title in titles),
        rows=tuple(map(_gpu_row, machine.gpus)),
    )
    return [table, *_instances(machine), *_links(machine)]


def _gpu_row(gpu: Gpu) -> tuple[Cell, ...]:
    state = gpu.state
    limit = None if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W"
    if limit and gpu.power_limit_min_w is not None and gpu.power_limit_max_w is not None:
        limit += f" ({gpu.power_limit_min_w:.0f} – {gpu.power_limit_max_w:.0f})"
    clock = state.sm_mhz if state else None
    return (
        gpu.index,
        gpu.name,
        gpu.uuid,
        None if gpu.memory_mib is None else f"{gpu.memory_mib / 1024:.1f} GiB",
        gpu.node,
        limit,
        None if clock is None else f"{clock} of {gpu.sm_max_mhz or '?'} MHz",
        None if state is None or state.temperature_c is None else f"{state.temperature_c} °C",
    )


def _instances(machine: Machine) -> list[Element]:
    rows = tuple(
        (f"cuda:{gpu.index}/{i.number}", i.profile, i.uuid, None if i.memory_mib is None else f"{i.memory_mib:.0f} MiB")
        for gpu in machine.gpus
        for i in gpu.instances
    )
    columns = tuple(Column(title=title) for title in ("device", "profile", "UUID", "memory"))
    return [Table(title="MIG instances", columns=columns, rows=rows)] if rows else []


def _links(machine: Machine) -> list[Element]:
    if len(machine.gpus) < 2:
        return []
    indices = [gpu.index for gpu in machine.gpus]
    rows = tuple((f"GPU {a}", *(_way(machine, a, b) for b in indices)) for a in indices)
    columns = (Column(title=""), *(Column(title=f"GPU {b}") for b in indices))
    return [Table(title="How GPUs reach each other", columns=columns, rows=rows)]


def _way(machine: Machine, one: int, other: int) -> str | None:
    link = machine.link(one, other)
    if link is None:
        return None
    return f"NVLink ×{link.nvlinks}" if link.nvlinks else link.path


def _versions(machine: Machine) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
