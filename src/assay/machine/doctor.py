"""The checks of ``assay doctor``.

Sources of timing noise, permissions and tools, each with its fix, and the page that shows them.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text, build_table
from assay.core.results import make_check
from assay.machine.linux import read_text_or_none

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Finding, Verdict
    from assay.machine.model import Gpu, Machine


_STEADY_GOVERNORS = {"performance"}
_HARMLESS_THROTTLE = {"idle"}


def _check(topic: str, claim: str, reason: str | None = None, *, holds: bool | None, fix: str) -> Finding:
    """Return whether a claim holds (null: unknown); the fix is given only where it does not."""
    verdict: Verdict = "unsure" if holds is None else "yes" if holds else "no"
    return make_check(claim, verdict, reason, fix=None if verdict != "no" else fix, topic=topic)


def check_machine(machine: Machine, *, has_gpu_hardware: bool) -> list[Finding]:
    """Return every finding about the machine that affects timings; without GPU hardware, having no GPU is normal."""
    return [
        _check(
            "gpus",
            "NVML answers and lists GPUs",
            f"{len(machine.gpus)} with driver {machine.driver}" if machine.gpus else machine.gpu_note,
            holds=True if machine.gpus else False if has_gpu_hardware else None,
            fix="a GPU is plugged in: install its driver, or hand it into this container",
        ),
        *(
            _check(
                "gpus",
                f"GPU {lost.index} answers",
                lost.reason,
                holds=False,
                fix="reset it or reboot; look for Xid errors in `dmesg`",
            )
            for lost in machine.lost
        ),
        *_check_cores(machine),
        *_check_sharing(machine),
        *(finding for gpu in machine.gpus for finding in _check_gpu(gpu)),
        *_check_mps(machine),
    ]


def _check_cores(machine: Machine) -> list[Finding]:
    governor, turbo = machine.cpu.governor, machine.cpu.turbo
    shared = [core for core in machine.cores if core.foreign_cpus]
    smt = {True: "cores run two threads; Assay allots them whole", False: "off or absent", None: "not reported"}
    return [
        _check(
            "noise",
            "The CPU's governor keeps its clock steady",
            f"the governor is {governor}" if governor else "the kernel shows no governor (usual in virtual machines)",
            holds=None if governor is None else set(governor.replace(",", " ").split()) <= _STEADY_GOVERNORS,
            fix="sudo cpupower frequency-set -g performance",
        ),
        _check(
            "noise",
            "The CPU's clock does not depend on its neighbours (turbo off)",
            {True: "turbo is on", False: "turbo is off", None: "the kernel does not report it"}[turbo],
            holds=None if turbo is None else not turbo,
            fix="for the steadiest CPU timings: echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo, "
            "or echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost",
        ),
        _check(
            "noise",
            "None of our cores is shared with another process's thread (SMT)",
            f"{len(shared)} of our cores have a sibling thread that only others may use"
            if shared
            else smt[machine.cpu.smt],
            holds=not shared,
            fix="allow whole physical cores in the cpuset, or switch SMT off",
        ),
    ]


def _check_sharing(machine: Machine) -> list[Finding]:
    quota, cores = machine.limits.cpu_quota, len(machine.cpus)
    tight = quota is not None and quota < cores
    named = f" ({machine.hypervisor})" if machine.hypervisor not in {None, "unnamed"} else ""
    guest = f"a container ({machine.container}) in a virtual machine" if machine.container else "a virtual machine"
    return [
        _check(
            "noise",
            "No control group pauses this process in the middle of a measurement",
            f"{quota:g} CPUs' worth of time for {cores} CPUs: paused for the rest of each period"
            if tight
            else "no quota",
            holds=not tight,
            fix="raise cpu.max (docker: --cpus), or give whole cores with a cpuset instead",
        ),
        _check(
            "noise",
            "This is bare metal, not shared with other guests",
            f"this runs in {guest}{named}: other guests may interfere and are not visible"
            if machine.hypervisor
            else None,
            holds=machine.hypervisor is None,
            fix="compare within one run, and watch steal time",
        ),
    ]


def _check_gpu(gpu: Gpu) -> list[Finding]:
    state, named = gpu.state, f"GPU {gpu.index}"
    findings = [
        _check(
            "gpus",
            f"{named} keeps its settings between programs (persistence mode)",
            "off: limits and clocks may reset between programs" if gpu.persistence is False else None,
            holds=gpu.persistence,
            fix=f"sudo nvidia-smi -i {gpu.index} -pm 1",
        )
    ]
    if state is not None and state.throttle is not None:
        throttled = [reason for reason in state.throttle if reason not in _HARMLESS_THROTTLE]
        findings.append(
            _check(
                "gpus",
                f"{named} is not throttled",
                f"throttled: {', '.join(throttled)}" if throttled else None,
                holds=not throttled,
                fix="let it cool, raise its power limit, or read times together with clocks",
            )
        )
    if state is not None and state.utilisation_percent is not None:
        busy = state.utilisation_percent > 0
        findings.append(
            _check(
                "noise",
                f"{named} is idle",
                f"{state.utilisation_percent} % busy" if busy else None,
                holds=not busy,
                fix=f"see which process uses it: nvidia-smi -i {gpu.index}",
            )
        )
    return findings


def _check_mps(machine: Machine) -> list[Finding]:
    if machine.mps is None or not (machine.mps.daemon or machine.mps.pipe):
        return []
    return [
        _check(
            "noise",
            "CUDA programs do not share a GPU through MPS",
            "the multi-process service runs: kernels of several processes may overlap",
            holds=False,
            fix="echo quit | nvidia-cuda-mps-control",
        )
    ]


SYS_ADMIN = 21
"""The capability's bit in /proc/self/status: root in a container may lack it."""
STATUS_PATH = "proc/self/status"
RAPL_PATH = "sys/class/powercap/intel-rapl:0/energy_uj"
DRIVER_PARAMETERS = "proc/driver/nvidia/params"


def check_permissions(machine: Machine, root: Path, *, user_id: int | None = None) -> list[Finding]:
    """Return which privileges are missing, each with its fix; nothing is changed to find out."""
    is_root = (os.geteuid() if user_id is None else user_id) == 0
    rapl = root / RAPL_PATH
    readable = read_text_or_none(rapl) is not None
    findings = [
        _check(
            "permissions",
            "The CPU's energy counter (RAPL) may be read",
            None if readable else "only root may read it" if rapl.exists() else "this machine has none",
            holds=True if readable else False if rapl.exists() else None,
            fix=f"sudo chmod a+r /{RAPL_PATH}",
        )
    ]
    if machine.gpus:
        missing = missing_rights(root, user_id=user_id)
        findings += [
            _check(
                "permissions",
                "Power limits and clocks of GPUs may be changed (for sweeps; measuring needs none of it)",
                "this is root" if missing is None else missing if is_root else "only root may",
                holds=missing is None,
                fix=f"{'start the container with --cap-add SYS_ADMIN' if is_root else 'run the sweep with sudo'}; "
                "everything else works without",
            ),
            _check_counters(root, is_root=is_root),
        ]
    return findings


def missing_rights(root: Path, *, user_id: int | None = None) -> str | None:
    """Return what this process lacks to change limits and clocks of GPUs, as text; null: nothing that can be detected.

    Nothing is changed to find out; whether the driver agrees only shows when a setting is made.
    """
    if (os.geteuid() if user_id is None else user_id) != 0:
        return "administrator rights: only root may, as with sudo"
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", read_text_or_none(root / STATUS_PATH) or "", re.MULTILINE)
    if match is not None and not int(match[1], 16) >> SYS_ADMIN & 1:
        return "the capability CAP_SYS_ADMIN, which this container does not give to its root"
    return None


def _check_counters(root: Path, *, is_root: bool) -> Finding:
    text = read_text_or_none(root / DRIVER_PARAMETERS)
    match = re.search(r"RmProfilingAdminOnly:\s*(\d)", text) if text else None
    restricted = None if match is None else match[1] == "1"
    allowed = is_root or restricted is False
    return make_check(
        "Hardware counters of GPUs may be read (for ncu)",
        "yes" if allowed else "unsure" if restricted is None else "no",
        "the driver lets only root read them" if restricted and not is_root else None,
        fix=None if allowed else "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then reboot",
        topic="permissions",
    )


_PACKAGE_MANAGERS = {
    "debian": "apt-get install",
    "ubuntu": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "centos": "dnf install",
    "amzn": "dnf install",
    "suse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
}


@dataclass(frozen=True)
class ExternalTool:
    """A program, its purpose here, and its package by distribution family."""

    name: str
    purpose: str
    packages: Mapping[str, str]
    needs_gpu: bool = False


EXTERNAL_TOOLS = (
    ExternalTool(
        "nvidia-smi",
        "the NVIDIA driver: without it no GPU is seen",
        {
            "debian": "nvidia-driver",
            "ubuntu": "nvidia-driver-580-server",
            "fedora": "akmod-nvidia",
            "rhel": "nvidia-driver",
            "suse": "nvidia-open-driver-G06-signed",
            "arch": "nvidia-open",
        },
        needs_gpu=True,
    ),
    ExternalTool(
        "nvcc",
        "the CUDA toolkit: builds CUDA C++",
        {
            "debian": "nvidia-cuda-toolkit",
            "ubuntu": "nvidia-cuda-toolkit",
            "fedora": "cuda-toolkit",
            "rhel": "cuda-toolkit",
            "suse": "cuda-toolkit",
            "arch": "cuda",
        },
        needs_gpu=True,
    ),
    ExternalTool(
        "ncu",
        "Nsight Compute: reads hardware counters",
        {"debian": "nsight-compute", "ubuntu": "nsight-compute", "rhel": "cuda-nsight-compute-13-0", "arch": "cuda"},
        needs_gpu=True,
    ),
    ExternalTool("numactl", "shows and sets memory nodes by hand; Assay binds without it", {"": "numactl"}),
    ExternalTool("taskset", "pins by hand; Assay pins without it", {"": "util-linux"}),
)


def distribution(root: Path) -> tuple[str, ...]:
    """Return the distribution's own name and its relatives, nearest first; empty where it is unknown."""
    path = root / "etc/os-release"
    if not path.exists():
        return ()
    fields = dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    words = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split()
    return tuple(word for word in words if word in _PACKAGE_MANAGERS)


def install_command(tool: ExternalTool, families: tuple[str, ...], *, root_user: bool) -> str | None:
    """Return the command that installs a tool here; null where its package is unknown."""
    for family in families:
        package = tool.packages.get(family) or tool.packages.get("")
        if package is not None:
            return f"{'' if root_user else 'sudo '}{_PACKAGE_MANAGERS[family]} {package}"
    return None


def check_tools(
    root: Path, *, has_gpu_hardware: bool, find: Callable[[str], str | None] = shutil.which
) -> list[Finding]:
    """Return which tools are installed; those for GPUs only matter where there is one."""
    families = distribution(root)
    findings: list[Finding] = []
    for tool in EXTERNAL_TOOLS:
        path = find(tool.name)
        if path is None and tool.needs_gpu and not has_gpu_hardware:
            continue
        command = install_command(tool, families, root_user=os.geteuid() == 0)
        findings.append(
            make_check(
                f"{tool.name} is installed ({tool.purpose})",
                "yes" if path else "no",
                path or "it is not on the path",
                fix=None if path else command or f"install {tool.name} with your package manager",
                topic="tools",
            )
        )
    return findings


def has_nvidia_hardware(root: Path) -> bool:
    """Return whether an NVIDIA GPU is plugged in, according to PCI, with or without a driver."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = device / "vendor", device / "class"
        if vendor.exists() and kind.exists():
            is_display = kind.read_text().strip().startswith(("0x0300", "0x0302"))
            if vendor.read_text().strip() == "0x10de" and is_display:
                return True
    return False


_TONES: dict[str, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}
_TOPICS = {
    "isolation": "Isolation",
    "noise": "Sources of timing noise",
    "clock": "Clocks",
    "gpus": "GPUs",
    "software": "Software",
    "tools": "Tools",
    "permissions": "Permissions",
}


def build_doctor_page(machine: Machine, findings: tuple[Finding, ...], yaml: str | None) -> Page:
    """Return the page with all findings, those that need a fix first."""
    sections = [Section(title="What to fix", elements=(_fix_table(findings),)), *_topic_sections(findings)]
    sections.append(Section(title="The machine", elements=(_cpu_table(machine), *_gpu_tables(machine))))
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
    if yaml is not None:
        text = "Multi-GPU inference, ready to use (each GPU was tested and answered):\n\n" + yaml
        sections.append(Section(title="Configuration", elements=(Text(text=text),)))
    return Page(
        title="assay doctor",
        lead=summarize_findings(findings),
        lead_tone="plain",
        sections=tuple(sections),
        facts=(("kernel", machine.kernel), ("versions", versions)),
        origin="fake" if machine.has_fake_driver else "real",
    )


def summarize_findings(findings: tuple[Finding, ...]) -> str:
    """Return the diagnosis in one sentence."""
    level, devices = next(((f.facts["level"], f.facts["devices"]) for f in findings if "level" in f.facts), ("none", 1))
    failed = [f for f in findings if f.verdict == "no" and f.facts.get("fix")]
    noisy = sum(f.facts["topic"] in {"noise", "clock"} for f in failed)
    other = sum(f.facts["topic"] == "gpus" for f in failed)
    noise = f"{noisy} source{'s' if noisy > 1 else ''} of noise" if noisy else "no source of noise"
    more = f"; the GPUs have {other} problem{'s' if other > 1 else ''}" if other else ""
    at_once = f" for {devices} devices at once" if isinstance(devices, int) and devices > 1 else ""
    return f"Isolation up to level {level!r} holds here{at_once}; {noise}{more}."


def _fix_table(findings: tuple[Finding, ...]) -> Element:
    fixable = [f for f in findings if f.verdict != "yes" and f.facts.get("fix")]
    if not fixable:
        return Text(text="Nothing.", tone="good")
    columns = {"problem": lambda f: f.claim, "reason": lambda f: f.reason, "fix": lambda f: f.facts["fix"]}
    return build_table("Claims that do not hold", fixable, columns)


def _topic_sections(findings: tuple[Finding, ...]) -> list[Section]:
    sections: list[Section] = []
    for topic, title in _TOPICS.items():
        chosen = [f for f in findings if f.facts["topic"] == topic]
        if chosen:
            table = build_table(
                "Claims",
                chosen,
                {"claim": lambda f: f.claim, "holds": lambda f: f.verdict, "reason": lambda f: f.reason},
                tone=lambda f: _TONES[f.verdict],
            )
            sections.append(Section(title=title, elements=(table,)))
    return sections


def _cpu_table(machine: Machine) -> Table:
    quota = machine.limits.cpu_quota
    rows: tuple[tuple[str, Cell], ...] = (
        ("model", machine.cpu_model or machine.architecture),
        ("physical cores we may use", len(machine.cores)),
        ("logical CPUs we may use", " ".join(map(str, machine.cpus))),
        ("memory nodes", len(machine.nodes) or None),
        ("memory", _format_gib(machine.memory_mib)),
        ("quota", None if quota is None else f"{quota:g} CPUs"),
        ("virtual machine", machine.hypervisor),
        ("container", machine.container),
    )
    return build_table("CPU and memory", rows, {"property": lambda row: row[0], "value": lambda row: row[1]})


def _format_gib(mib: float | None) -> str | None:
    return None if mib is None else f"{mib / 1024:.1f} GiB"


def _gpu_tables(machine: Machine) -> list[Element]:
    if not machine.gpus:
        return [Text(text=f"No GPU: {machine.gpu_note or 'none is visible'}.")]
    gpus = build_table(
        f"GPUs, driver {machine.driver}, CUDA up to {machine.cuda_driver or 'unknown'}",
        machine.gpus,
        {
            "GPU": lambda gpu: gpu.index,
            "name": lambda gpu: gpu.name,
            "UUID": lambda gpu: gpu.uuid,
            "memory": lambda gpu: _format_gib(gpu.memory_mib),
            "node": lambda gpu: gpu.node,
            "power limit": _format_power_limit,
            "SM clock": lambda gpu: (
                f"{gpu.state.sm_mhz} of {gpu.sm_max_mhz or '?'} MHz"
                if gpu.state and gpu.state.sm_mhz is not None
                else None
            ),
            "temperature": lambda gpu: (
                f"{gpu.state.temperature_c} °C" if gpu.state and gpu.state.temperature_c is not None else None
            ),
        },
    )
    instances = build_table(
        "MIG instances",
        [(gpu, instance) for gpu in machine.gpus for instance in gpu.instances],
        {
            "device": lambda row: f"cuda:{row[0].index}/{row[1].number}",
            "profile": lambda row: row[1].profile,
            "UUID": lambda row: row[1].uuid,
            "memory": lambda row: None if row[1].memory_mib is None else f"{row[1].memory_mib:.0f} MiB",
        },
    )
    return [gpus, *([instances] if instances.rows else []), *_link_tables(machine)]


def _format_power_limit(gpu: Gpu) -> str | None:
    limit = None if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W"
    if limit and gpu.power_limit_min_w is not None and gpu.power_limit_max_w is not None:
        limit += f" ({gpu.power_limit_min_w:.0f} – {gpu.power_limit_max_w:.0f})"
    return limit


def _link_tables(machine: Machine) -> list[Element]:
    if len(machine.gpus) < 2:
        return []

    def describe(one: int, other: int) -> str | None:
        link = machine.link(one, other)
        return None if link is None else f"NVLink ×{link.nvlinks}" if link.nvlinks else link.path

    indices = [gpu.index for gpu in machine.gpus]
    rows = tuple((f"GPU {a}", *(describe(a, b) for b in indices)) for a in indices)
    columns = (Column(title=""), *(Column(title=f"GPU {b}") for b in indices))
    return [Table(title="Links between GPUs", columns=columns, rows=rows)]


MEMORY_SHARE = 0.9
"""The share of a GPU's memory that a model may take; the rest is for activations and the context."""

FIRST_BFLOAT16 = (8, 0)


def build_inference_yaml(gpus: tuple[Gpu, ...]) -> str:
    """Return a ``backend`` section for these GPUs, with 90 % of each one's memory as its limit."""
    ids = [gpu.index for gpu in gpus]
    modern = all(gpu.compute_capability is not None and gpu.compute_capability >= FIRST_BFLOAT16 for gpu in gpus)
    lines = [
        "backend:",
        "  type: pytorch",
        "  device: cuda",
        f"  device_ids: [{', '.join(map(str, ids))}]",
        "  device_map: auto",
        f"  torch_dtype: {'bfloat16' if modern else 'float16'}",
    ]
    with_memory = [gpu for gpu in gpus if gpu.memory_mib is not None]
    if with_memory:
        lines.append("  max_memory:  # 90 % of what each GPU has")
        lines += [f'    {gpu.index}: "{int((gpu.memory_mib or 0) * MEMORY_SHARE)}MiB"' for gpu in with_memory]
    return "\n".join(lines) + "\n"
