"""From the words of a case file to workloads and devices of this machine; what does not fit here is left out."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.experiments.power.cases import IDLE
from assay.experiments.power.characterize.options import Case, LeftOut, NoisePart, Part
from assay.isolation.devices import choose, kind_of
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.plan import Subject
    from assay.core.values import Scalar
    from assay.experiments.power.cases import Actor, Wanted
    from assay.machine.model import Machine

LIBRARIES = {"torch": "PyTorch", "triton": "Triton", "helion": "Helion"}
"""What an implementation needs to be installed."""


class Unfit(Exception):
    """A case cannot be measured on this kind of device, or with what is installed; the words say why."""


def found(wanted: Sequence[Wanted], machine: Machine, kind: str) -> tuple[tuple[Case, ...], tuple[LeftOut, ...]]:
    """Return the cases whose workloads run here, and those that are left out.

    Raises:
        BadInput: A workload or a parameter that there is not; the sentence has the line of the file.
    """
    cases: list[Case] = []
    left_out: list[LeftOut] = []
    for spec in wanted:
        try:
            cases.append(_case(spec, machine, kind))
        except Unfit as reason:
            left_out.append(LeftOut(case=spec.name, reason=str(reason)))
    return tuple(cases), tuple(left_out)


def _case(wanted: Wanted, machine: Machine, kind: str) -> Case:
    base = wanted.base
    return Case(
        name=wanted.name,
        base=Part(
            subject=_subject(base, kind, wanted.place),
            count=base.gpus,
            devices=_devices(base.devices, machine, kind),
        ),
        noise=tuple(
            NoisePart(
                subject=_subject(noise, kind, wanted.place),
                count=noise.gpus,
                devices=_devices(noise.devices, machine, kind),
                placement=noise.placement,
            )
            for noise in wanted.noise
        ),
        repeats=wanted.repeats,
        duration_s=wanted.duration_s,
        settle_s=wanted.settle_s or None,
        restarts=wanted.restarts,
        rotate=wanted.rotate,
    )


def _subject(actor: Actor, kind: str, place: str) -> Subject:
    """Return a workload; where it is known and does not run on this kind of device, it is unfit and not unknown."""
    params = {name: _text(value) for name, value in actor.params.items()}
    try:
        subject = registry.subject(actor.workload, device_kind=kind, given=params)
    except MachineCannot as error:
        raise Unfit(_clause(error)) from None
    except BadInput as error:
        if _runs_elsewhere(actor.workload, params, "cpu" if kind == "cuda" else "cuda"):
            raise Unfit(_clause(error)) from None
        raise BadInput(f"{place}: {error}") from None
    library = LIBRARIES.get(subject.impl)
    if library is not None and find_spec(subject.impl) is None:
        raise Unfit(f"{subject.label} needs {library}, which is not installed")
    return subject


def _clause(error: AssayError) -> str:
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:]


def _runs_elsewhere(workload: str, given: dict[str, str], kind: str) -> bool:
    try:
        registry.subject(workload, device_kind=kind, given=given)
    except AssayError:
        return False
    return True


def _text(value: Scalar) -> str:
    """Return a value as it would stand on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _devices(words: tuple[str, ...], machine: Machine, kind: str) -> tuple[str, ...]:
    """Return the devices that a file names, by number, UUID or name."""
    if not words:
        return ()
    named = tuple(word if ":" in word or not word.isdigit() else f"{kind}:{word}" for word in words)
    try:
        by_uuid = all(word.startswith(("GPU-", "MIG-")) for word in named)
        chosen = choose(machine, gpus=named) if by_uuid else choose(machine, devices=named)
    except MachineCannot as error:
        raise Unfit(_clause(error)) from None
    if kind_of(chosen[0]) != kind:
        raise Unfit(f"{chosen[0]} is not among the devices of this run")
    return chosen


def with_baseline(cases: tuple[Case, ...], kind: str) -> tuple[Case, ...]:
    """Return the cases, and before them all devices idle at once unless the file has that.

    A CUDA context is open on each GPU where PyTorch is there to open one.
    """
    if any(case.base.subject.workload == IDLE and case.base.count is None and not case.noise for case in cases):
        return cases
    names = {case.name for case in cases}
    params = {} if find_spec("torch") is not None else {"context": "false"}
    idle = Case(
        name=IDLE if IDLE not in names else f"{IDLE}, all at once",
        base=Part(subject=registry.subject(IDLE, device_kind=kind, given=params), count=None),
        repeats=max(case.repeats for case in cases),
        duration_s=max(case.duration_s for case in cases),
        settle_s=max((case.settle_s for case in cases if case.settle_s is not None), default=None),
    )
    return (idle, *cases)
