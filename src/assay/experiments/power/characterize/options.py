"""Options of ``assay power characterize``, resolved from a case file: workloads and devices of this machine.

Cases that cannot be measured here are skipped, each with the reason; under a budget, timing and settling are shortened.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.core.format import format_duration
from assay.core.values import InterferencePolicy, Isolation, Subject, Value
from assay.experiments.power.cases import IDLE, Placement
from assay.experiments.power.characterize.plan import build_trial, is_idle, misfit_reason, place_cases, trial_duration_s
from assay.isolation.devices import choose_devices, kind_of
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.values import Scalar
    from assay.experiments.power.cases import CaseSpec, CaseWorkload
    from assay.machine.model import Machine


class CasePart(Value):
    """A workload of a case, on so many devices at once (null: all that are left) or on named ones."""

    subject: Subject
    count: int | None = Field(default=1, ge=1)
    devices: tuple[str, ...] = ()


class NoisePart(CasePart):
    """A load beside what is timed; on the same devices, the count is null."""

    placement: Placement = "any"


class CharacterizeCase(Value):
    """What is timed together, beside what, for how long, and how often."""

    name: str
    base: CasePart
    noise: tuple[NoisePart, ...] = ()
    repeats: int = Field(default=3, ge=1)
    duration_s: float = Field(default=20.0, gt=0)
    settle_s: float | None = Field(default=None, gt=0)
    restarts: int = Field(default=1, ge=1)
    rotate: bool = True


class SkippedCase(Value):
    """A case that cannot be measured here, and why."""

    case: str
    reason: str


class CharacterizeOptions(Value):
    """Every case once in each repeat, on every device in turn, in random order."""

    cases: tuple[CharacterizeCase, ...] = Field(min_length=1)
    skipped: tuple[SkippedCase, ...] = ()
    devices: tuple[str, ...] = Field(min_length=1)
    source: str | None = Field(default=None, description="The case file.")
    isolation: Isolation = "full"
    minimum_effect: float = Field(default=0.01, gt=0, lt=1, description="Smaller changes do not count.")
    budget_s: float | None = Field(default=None, gt=0, description="No repeat begins that would not fit any more.")
    on_interference: InterferencePolicy = "warn"
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0

    @property
    def repeats(self) -> int:
        """Of the case that has most."""
        return max(case.repeats for case in self.cases)


LIBRARIES = {"torch": "PyTorch", "triton": "Triton", "helion": "Helion"}
"""What an implementation needs to be installed."""


class UnsupportedCase(Exception):
    """A case cannot be measured on this kind of device, or with what is installed; the words say why."""


def resolve_cases(
    specs: Sequence[CaseSpec], machine: Machine, kind: str
) -> tuple[tuple[CharacterizeCase, ...], tuple[SkippedCase, ...]]:
    """Return the cases whose workloads run here, and those that are left out.

    Raises:
        BadInput: A workload or a parameter that there is not; the sentence has the line of the file.
    """
    cases: list[CharacterizeCase] = []
    left_out: list[SkippedCase] = []
    for spec in specs:
        try:
            cases.append(_resolve_case(spec, machine, kind))
        except UnsupportedCase as reason:
            left_out.append(SkippedCase(case=spec.name, reason=str(reason)))
    return tuple(cases), tuple(left_out)


def _resolve_case(spec: CaseSpec, machine: Machine, kind: str) -> CharacterizeCase:
    base = spec.base
    return CharacterizeCase(
        name=spec.name,
        base=CasePart(
            subject=_resolve_subject(base, kind, spec.location),
            count=base.gpus,
            devices=_resolve_devices(base.devices, machine, kind),
        ),
        noise=tuple(
            NoisePart(
                subject=_resolve_subject(noise, kind, spec.location),
                count=noise.gpus,
                devices=_resolve_devices(noise.devices, machine, kind),
                placement=noise.placement,
            )
            for noise in spec.noise
        ),
        repeats=spec.repeats,
        duration_s=spec.duration_s,
        settle_s=spec.settle_s or None,
        restarts=spec.restarts,
        rotate=spec.rotate,
    )


def _resolve_subject(actor: CaseWorkload, kind: str, location: str) -> Subject:
    """Return a workload; where it is known and does not run on this kind of device, it is unfit and not unknown."""
    params = {name: _value_text(value) for name, value in actor.params.items()}
    try:
        subject = registry.resolve_subject(actor.workload, device_kind=kind, explicit=params)
    except MachineCannot as error:
        raise UnsupportedCase(_error_clause(error)) from None
    except BadInput as error:
        if _runs_elsewhere(actor.workload, params, "cpu" if kind == "cuda" else "cuda"):
            raise UnsupportedCase(_error_clause(error)) from None
        raise BadInput(f"{location}: {error}") from None
    library = LIBRARIES.get(subject.impl)
    if library is not None and find_spec(subject.impl) is None:
        raise UnsupportedCase(f"{subject.label} needs {library}, which is not installed")
    return subject


def _error_clause(error: AssayError) -> str:
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:]


def _runs_elsewhere(workload: str, params: dict[str, str], kind: str) -> bool:
    try:
        registry.resolve_subject(workload, device_kind=kind, explicit=params)
    except AssayError:
        return False
    return True


def _value_text(value: Scalar) -> str:
    """Return a value as it would stand on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _resolve_devices(words: tuple[str, ...], machine: Machine, kind: str) -> tuple[str, ...]:
    """Return the devices that a file names, by number, UUID or name."""
    if not words:
        return ()
    named = tuple(word if ":" in word or not word.isdigit() else f"{kind}:{word}" for word in words)
    try:
        by_uuid = all(word.startswith(("GPU-", "MIG-")) for word in named)
        chosen = choose_devices(machine, gpus=named) if by_uuid else choose_devices(machine, devices=named)
    except MachineCannot as error:
        raise UnsupportedCase(_error_clause(error)) from None
    if kind_of(chosen[0]) != kind:
        raise UnsupportedCase(f"{chosen[0]} is not among the devices of this run")
    return chosen


def add_idle_baseline(cases: tuple[CharacterizeCase, ...], kind: str) -> tuple[CharacterizeCase, ...]:
    """Return the cases, and before them all devices idle at once unless the file has that.

    A CUDA context is open on each GPU where PyTorch is there to open one.
    """
    if any(case.base.subject.workload == IDLE and case.base.count is None and not case.noise for case in cases):
        return cases
    names = {case.name for case in cases}
    params = {} if find_spec("torch") is not None else {"context": "false"}
    idle = CharacterizeCase(
        name=IDLE if IDLE not in names else f"{IDLE}, all at once",
        base=CasePart(subject=registry.resolve_subject(IDLE, device_kind=kind, explicit=params), count=None),
        repeats=max(case.repeats for case in cases),
        duration_s=max(case.duration_s for case in cases),
        settle_s=max((case.settle_s for case in cases if case.settle_s is not None), default=None),
    )
    return (idle, *cases)


SHORTEST_TRIAL_S = 0.5


def resolve_options(
    machine: Machine, specs: Sequence[CaseSpec], *, devices: tuple[str, ...], **settings: Any
) -> CharacterizeOptions:
    """Return the options that cases mean on these devices, idleness among them.

    Raises:
        BadInput: A workload or a parameter that there is not.
        MachineCannot: No case fits, but for idleness.
    """
    kind = kind_of(devices[0])
    cases, left_out = resolve_cases(specs, machine, kind)
    if not cases:
        raise MachineCannot(_no_case_fits_text({skipped_case.case: skipped_case.reason for skipped_case in left_out}))
    options = CharacterizeOptions(cases=add_idle_baseline(cases, kind), skipped=left_out, devices=devices, **settings)
    unfit = skipped_reasons(machine, options)
    if unfit and all(is_idle(case) or case.name in unfit for case in options.cases):
        raise MachineCannot(_no_case_fits_text(unfit))
    return options


def _no_case_fits_text(unfit: dict[str, str]) -> str:
    name, reason = next(iter(unfit.items()))
    return f"No case can be measured here; {name!r}: {reason}."


def skipped_reasons(machine: Machine, options: CharacterizeOptions) -> dict[str, str]:
    """Return the cases that are left out, each with the reason."""
    unfit = {case.name: misfit_reason(machine, options, case) for case in options.cases}
    too_large = {name: reason for name, reason in unfit.items() if reason is not None}
    return {**too_large, **{skipped_case.case: skipped_case.reason for skipped_case in options.skipped}}


def fit_budget(machine: Machine, options: CharacterizeOptions) -> tuple[CharacterizeOptions, float]:
    """Return the options with timing and settling shortened until one repeat fits the budget, and to which share.

    Raises:
        BadInput: It would have to be shorter than is worth anything.
    """
    if options.budget_s is None:
        return options, 1.0
    placed_cases = place_cases(machine, options, 1)
    whole_s = sum(trial_duration_s(build_trial(options, placed_case)) for placed_case in placed_cases)
    shrinking_s = sum(
        placed_case.case.duration_s + placed_case.case.restarts * (placed_case.case.settle_s or 0.0)
        for placed_case in placed_cases
    )
    share = min(1.0, 1 - (whole_s - options.budget_s) / shrinking_s)
    shortest_s = min(placed_case.case.duration_s for placed_case in placed_cases)
    if share * shortest_s < min(SHORTEST_TRIAL_S, shortest_s):
        least_s = whole_s - shrinking_s * (1 - SHORTEST_TRIAL_S / shortest_s)
        raise BadInput(
            f"--budget {format_duration(options.budget_s)} is too little for a repeat of {len(placed_cases)} "
            "trials, which "
            f"with starting take {format_duration(least_s)} at least; fewer --case or --gpus, or "
            "--no-rotate, need less."
        )
    cases = tuple(
        case.model_copy(
            update={
                "duration_s": case.duration_s * share,
                "settle_s": None if case.settle_s is None else case.settle_s * share,
            }
        )
        for case in options.cases
    )
    return options.model_copy(update={"cases": cases}), share
