"""What about this machine would make timings noisy or impossible, each with its fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.checks import check

if TYPE_CHECKING:
    from assay.core.results import Finding, Verdict
    from assay.machine.model import Gpu, Machine

_STEADY_GOVERNORS = {"performance"}
_HARMLESS_THROTTLE = {"idle"}


def checks(machine: Machine, *, has_gpu_hardware: bool) -> list[Finding]:
    """Return every claim about the machine that bears on timings; without a GPU plugged in, none is a normal answer."""
    return [
        _gpus_answer(machine, has_gpu_hardware=has_gpu_hardware),
        *_lost(machine),
        _governor(machine),
        _turbo(machine),
        _smt(machine),
        _quota(machine),
        _own_machine(machine),
        *[finding for gpu in machine.gpus for finding in _gpu(gpu)],
        *_mps(machine),
    ]


def _yes(holds: bool | None) -> Verdict:  # noqa: FBT001 - a truth value is what is translated
    return "unsure" if holds is None else "yes" if holds else "no"


def _gpus_answer(machine: Machine, *, has_gpu_hardware: bool) -> Finding:
    missing = has_gpu_hardware and not machine.gpus
    return check(
        "NVML answers and lists GPUs",
        "yes" if machine.gpus else "no" if has_gpu_hardware else "unsure",
        f"{len(machine.gpus)} with driver {machine.driver}" if machine.gpus else machine.gpu_note,
        fix="a GPU is plugged in: install its driver, or hand it into this container" if missing else None,
        topic="gpus",
    )


def _lost(machine: Machine) -> list[Finding]:
    return [
        check(
            f"GPU {lost.index} answers",
            "no",
            lost.reason,
            fix="reset it or reboot; look for Xid errors in `dmesg`",
            topic="gpus",
        )
        for lost in machine.lost
    ]


def _governor(machine: Machine) -> Finding:
    governor = machine.cpu.governor
    steady = None if governor is None else set(governor.replace(",", " ").split()) <= _STEADY_GOVERNORS
    return check(
        "The CPU's governor keeps its clock steady",
        _yes(steady),
        f"the governor is {governor}" if governor else "the kernel shows no governor (usual in virtual machines)",
        fix="sudo cpupower frequency-set -g performance" if steady is False else None,
        topic="noise",
    )


def _turbo(machine: Machine) -> Finding:
    turbo = machine.cpu.turbo
    return check(
        "The CPU's clock does not depend on its neighbours (turbo off)",
        _yes(None if turbo is None else not turbo),
        {True: "turbo is on", False: "turbo is off", None: "the kernel does not say"}[turbo],
        fix="for the steadiest CPU timings: echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo, "
        "or echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
        if turbo
        else None,
        topic="noise",
    )


def _smt(machine: Machine) -> Finding:
    shared = [core for core in machine.cores if core.foreign_cpus]
    smt = machine.cpu.smt
    reason = {True: "cores run two threads; Assay allots them whole", False: "off or absent", None: "not said"}[smt]
    if shared:
        reason = f"{len(shared)} of our cores have a sibling thread that only others may use"
    return check(
        "No core of ours is shared with another's thread (SMT)",
        _yes(not shared),
        reason,
        fix="allow whole physical cores in the cpuset, or switch SMT off" if shared else None,
        topic="noise",
    )


def _quota(machine: Machine) -> Finding:
    quota, cores = machine.limits.cpu_quota, len(machine.cpus)
    tight = quota is not None and quota < cores
    return check(
        "No control group takes the CPU away in the middle of a measurement",
        _yes(not tight),
        f"{quota:g} CPUs' worth of time for {cores} CPUs: the rest of each period we stand still"
        if tight
        else "no quota",
        fix="raise cpu.max (docker: --cpus), or give whole cores with a cpuset instead" if tight else None,
        topic="noise",
    )


def _own_machine(machine: Machine) -> Finding:
    guest = (
        "a virtual machine" if machine.hypervisor in {None, "unnamed"} else f"a virtual machine ({machine.hypervisor})"
    )
    where = f"a container ({machine.container}) in {guest}" if machine.container else guest
    return check(
        "This is a machine of its own, not shared with other guests",
        _yes(machine.hypervisor is None),
        f"this runs in {where}: neighbours may be felt and are not seen" if machine.hypervisor else None,
        fix="compare within one run, and watch steal time" if machine.hypervisor else None,
        topic="noise",
    )


def _gpu(gpu: Gpu) -> list[Finding]:
    state = gpu.state
    named = f"GPU {gpu.index}"
    findings = [
        check(
            f"{named} keeps its settings and wakes at once (persistence mode)",
            _yes(gpu.persistence),
            "off: limits and clocks may reset between programs" if gpu.persistence is False else None,
            fix=f"sudo nvidia-smi -i {gpu.index} -pm 1" if gpu.persistence is False else None,
            topic="gpus",
        )
    ]
    if state is not None and state.throttle is not None:
        held_back = [reason for reason in state.throttle if reason not in _HARMLESS_THROTTLE]
        findings.append(
            check(
                f"{named} is not held back",
                _yes(not held_back),
                f"held back by {', '.join(held_back)}" if held_back else None,
                fix="let it cool, raise its power limit, or read times together with clocks" if held_back else None,
                topic="gpus",
            )
        )
    if state is not None and state.utilisation_percent is not None:
        busy = state.utilisation_percent > 0
        findings.append(
            check(
                f"{named} is idle, so that we have it to ourselves",
                _yes(not busy),
                f"{state.utilisation_percent} % busy" if busy else None,
                fix=f"see who it is: nvidia-smi -i {gpu.index}" if busy else None,
                topic="noise",
            )
        )
    return findings


def _mps(machine: Machine) -> list[Finding]:
    if machine.mps is None or not (machine.mps.daemon or machine.mps.pipe):
        return []
    return [
        check(
            "CUDA programs of ours do not share a GPU through MPS",
            "no",
            "the multi-process service runs: kernels of several processes may overlap",
            fix="echo quit | nvidia-cuda-mps-control",
            topic="noise",
        )
    ]
