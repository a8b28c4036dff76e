"""The case file of ``assay power characterize``, and the options that it means on a machine.

YAML; it says what is timed on how many GPUs, beside which load, how often. Errors name the line.

defaults: {base: {workload: sgemm}, repeats: 3}
cases:
  - name: sgemm on {gpus} GPUs
    base: {gpus: [1, 2]}                                            a list makes a case of each: two
  - name: sgemm beside {noise_gpus} ResNet-50, {placement}
    noise: [{workload: resnet50, gpus: [1, 2], placement: [near, far]}]     and here four

Reading the file depends on no machine. Resolving its cases finds their workloads and devices; cases that cannot be
measured here are skipped, each with the reason. Under a budget, timing and settling are shortened.
"""

from __future__ import annotations

import itertools
import string
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from assay.core.errors import AssayError, BadInput, MachineCannot, suggest_nearest
from assay.core.format import MAX_REPEATS, format_duration, parse_duration_s
from assay.core.values import InterferencePolicy, Isolation, Params, Subject, Value
from assay.core.yaml_input import read_settings
from assay.experiments.file_locator import FileLocator
from assay.experiments.power.characterize.plan import (
    CaseDoesNotFit,
    build_trial,
    is_idle,
    misfit_reason,
    place_cases,
    trial_duration_s,
)
from assay.experiments.power.rows import IDLE
from assay.machine.devices import choose_devices, kind_of
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.machine.model import Machine

PACKAGED_CASES = Path(__file__).parents[1] / "cases.yaml"
Placement: TypeAlias = Literal["near", "far", "any", "same"]
Count: TypeAlias = int | Literal["all"]
PLACEHOLDERS = ("gpus", "noise_gpus", "workload", "noise", "placement")
REPEATS, DURATION_S, SETTLE_S, RESTARTS = 3, 20.0, 120.0, 1


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


class BaseSpec(Value):
    """What is timed, and on how many GPUs at once; or on which."""

    workload: str | None = None
    params: Params = Field(default_factory=dict)
    gpus: tuple[Count, ...] = ()
    devices: tuple[str, ...] = Field(default=(), description="These very ones, by number, UUID or name.")

    @field_validator("gpus", mode="before")
    @classmethod
    def _counts(cls, value: object) -> object:
        several = _as_list(value)
        if not several or not all(n == "all" or (type(n) is int and n >= 1) for n in several):
            raise ValueError(f"must be a number of GPUs from 1 on, all, or a list of such, and not {value!r}")
        return tuple(several)

    @field_validator("devices", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        several = _as_list(value)
        if not several or not all(isinstance(one, int | str) and not isinstance(one, bool) for one in several):
            raise ValueError(f"must be GPUs by number, UUID or name, and not {value!r}")
        return tuple(map(str, several))


class NoiseSpec(BaseSpec):
    """What runs beside it untimed, and where: on GPUs near to the timed ones, far from them, any, or on the same."""

    placement: tuple[Placement, ...] = ("any",)

    @field_validator("placement", mode="before")
    @classmethod
    def _placements(cls, value: object) -> object:
        several, allowed = _as_list(value), get_args(Placement)
        unknown = [word for word in several if word not in allowed]
        if unknown or not several:
            near = suggest_nearest(str(unknown[0]), allowed) if unknown else ""
            wrong = unknown[0] if unknown else several
            raise ValueError(f"must be near, far, any or same, and not {wrong!r}.{near}".rstrip("."))
        return tuple(several)


class _CaseSettings(Value):
    repeats: int | None = Field(default=None, ge=1, le=MAX_REPEATS)
    duration_s: float | None = Field(default=None, alias="duration")
    settle_s: float | None = Field(default=None, alias="settle")
    restarts: int | None = Field(default=None, ge=1, le=MAX_REPEATS)
    rotate: bool | None = Field(default=None, description="Whether every GPU has its turn to be timed.")

    @field_validator("duration_s", "settle_s", mode="before")
    @classmethod
    def _span(cls, value: object, info: ValidationInfo) -> object:
        settle = info.field_name == "settle_s"
        if settle and (value is False or value == "none"):
            return 0.0
        if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"must be a duration as 20s or 2m, and not {value!r}")
        try:
            return parse_duration_s(str(value), zero_ok=settle)
        except BadInput:
            raise ValueError(f"must be a duration as 20s or 2m, and not {value!r}") from None


class CaseDefaults(_CaseSettings):
    """What applies to cases that say nothing else."""

    base: BaseSpec = BaseSpec()


class CaseEntry(_CaseSettings):
    """One entry of the file; lists in it make several cases."""

    name: str = Field(min_length=1)
    base: BaseSpec = BaseSpec()
    noise: tuple[NoiseSpec, ...] = ()

    @field_validator("noise", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value


class CaseFile(Value):
    """The whole file."""

    defaults: CaseDefaults = CaseDefaults()
    cases: tuple[CaseEntry, ...] = Field(min_length=1)


class CaseWorkload(Value):
    """One workload of a case, on so many GPUs at once (null: all) or on named ones."""

    workload: str
    params: Params = Field(default_factory=dict)
    gpus: int | None = Field(default=1, ge=1)
    devices: tuple[str, ...] = ()


class NoiseWorkload(CaseWorkload):
    """Noise: on so many GPUs; on the same ones as what is timed, ``gpus`` is null."""

    placement: Placement = "any"


class CaseSpec(Value):
    """One case as the file wants it: numbers instead of lists, defaults filled in."""

    name: str
    base: CaseWorkload
    noise: tuple[NoiseWorkload, ...] = ()
    repeats: int = REPEATS
    duration_s: float = DURATION_S
    settle_s: float = Field(default=SETTLE_S, description="0: steadiness is not waited for.")
    restarts: int = RESTARTS
    rotate: bool = True
    location: str = Field(default="", description="The file and the line, for whoever complains about it later.")


def read_cases(path: Path) -> tuple[CaseSpec, ...]:
    """Return the cases of a file in order.

    Raises:
        BadInput: It cannot be read, or something in it makes no sense; the sentence has the line.
    """
    content = read_settings(path)
    if content is None:
        raise BadInput(f"{path} is empty: it must hold `cases`, a list.")
    if not isinstance(content, dict):
        raise BadInput(f"{path} must map `defaults` and `cases` to what they are, and holds none of it.")
    lines = FileLocator(path)
    try:
        file = CaseFile.model_validate(content)
    except ValidationError as error:
        raise lines.explain_error(error, _keys_at) from None
    specs = [
        spec
        for number, entry in enumerate(file.cases)
        for spec in _expand_entry(entry, file.defaults, lines.location(("cases", number)))
    ]
    duplicates = [name for name, count in Counter(spec.name for spec in specs).items() if count > 1]
    if duplicates:
        locations = [spec.location for spec in specs if spec.name == duplicates[0]]
        reason = f"two cases are named {duplicates[0]!r}"
        if len(set(locations)) < len(locations):
            parts = ", ".join(f"{{{word}}}" for word in PLACEHOLDERS)
            reason = (
                f"the lists in case {duplicates[0]!r} make several cases of one name; put {parts} into it, whichever "
                "differs"
            )
        raise BadInput(f"{locations[-1]}: {reason}.")
    return tuple(specs)


def _keys_at(key_path: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the keys that are known at a place of the file."""
    models: dict[str, type[Value]] = {
        "defaults": CaseDefaults,
        "cases": CaseEntry,
        "base": BaseSpec,
        "noise": NoiseSpec,
    }
    words = [part for part in key_path if isinstance(part, str)]
    model = models.get(words[-1], CaseFile) if words else CaseFile
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _expand_entry(entry: CaseEntry, defaults: CaseDefaults, location: str) -> Iterator[CaseSpec]:
    """Give a case for each combination of what an entry lists."""
    base = _with_defaults(entry.base, defaults.base, location)
    for noise in entry.noise:
        _check_base(noise, location)
    entries = {**defaults.model_dump(exclude_none=True), **entry.model_dump(exclude_none=True)}
    settings = {name: entries[name] for name in _CaseSettings.model_fields if name in entries}
    for count in _gpu_counts(base):
        actor = CaseWorkload(workload=str(base.workload), params=base.params, gpus=count, devices=base.devices)
        for neighbours in itertools.product(*map(_expand_noise, entry.noise)):
            name = _fill_name(entry.name, actor, neighbours, location)
            yield CaseSpec(name=name, base=actor, noise=neighbours, location=location, **settings)


def _with_defaults(base: BaseSpec, default: BaseSpec, location: str) -> BaseSpec:
    """Fill in what an entry does not say; parameters are of a workload and not taken over to another one."""
    workload = base.workload or default.workload
    if workload is None:
        raise BadInput(f"{location}: base names no workload, and the defaults have none.")
    params = {**default.params, **base.params} if workload == default.workload else base.params
    where = {} if base.gpus or base.devices else {"gpus": default.gpus, "devices": default.devices}
    filled = base.model_copy(update={"workload": workload, "params": params, **where})
    _check_base(filled, location)
    return filled


def _check_base(base: BaseSpec, location: str) -> None:
    """Say what makes no sense together."""
    if base.workload is None:
        raise BadInput(f"{location}: noise names no workload.")
    if base.gpus and base.devices:
        raise BadInput(f"{location}: {base.workload} is given both gpus (how many) and devices (which); one is enough.")
    if isinstance(base, NoiseSpec) and "same" in base.placement and (base.gpus or base.devices):
        raise BadInput(f"{location}: placement same is on the GPUs of the base; gpus and devices mean nothing there.")
    if isinstance(base, NoiseSpec) and base.devices and base.placement != ("any",):
        raise BadInput(f"{location}: noise on given devices is where they are; placement means nothing there.")


def _gpu_counts(base: BaseSpec) -> list[int | None]:
    if base.devices:
        return [len(base.devices)]
    default: tuple[Count, ...] = ("all",) if base.workload == IDLE else (1,)
    return [None if count == "all" else count for count in base.gpus or default]


def _expand_noise(noise: NoiseSpec) -> list[NoiseWorkload]:
    return [
        NoiseWorkload(
            workload=str(noise.workload),
            params=noise.params,
            gpus=None if placement == "same" else count,
            devices=noise.devices,
            placement=placement,
        )
        for count in _gpu_counts(noise)
        for placement in noise.placement
    ]


def _fill_name(name: str, base: CaseWorkload, noise: tuple[NoiseWorkload, ...], location: str) -> str:
    """Fill what differs into a name: ``{gpus}`` and its like."""
    counts = [one.gpus for one in noise if one.placement != "same"]
    values = {
        "gpus": "all" if base.gpus is None else base.gpus,
        "noise_gpus": "all" if None in counts else sum(count for count in counts if count is not None),
        "workload": base.workload,
        "noise": " and ".join(dict.fromkeys(one.workload for one in noise)),
        "placement": " and ".join(dict.fromkeys(one.placement for one in noise)),
    }
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(name) if field is not None]
    except ValueError as error:
        raise BadInput(f"{location}: the name {name!r} cannot be filled in: {error}.") from None
    unknown = [field for field in fields if field not in values]
    if unknown:
        raise BadInput(
            f"{location}: {{{unknown[0]}}} in a name means nothing; there are "
            f"{', '.join(f'{{{word}}}' for word in values)}."
            f"{suggest_nearest(unknown[0], values)}"
        )
    return name.format(**values)


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


def _resolve_case(spec: CaseSpec, machine: Machine, kind: str) -> CharacterizeCase:
    def part(actor: CaseWorkload) -> dict[str, Any]:
        subject = _resolve_subject(actor, kind, spec.location)
        return {"subject": subject, "count": actor.gpus, "devices": _resolve_devices(actor.devices, machine, kind)}

    return CharacterizeCase(
        name=spec.name,
        base=CasePart(**part(spec.base)),
        noise=tuple(NoisePart(**part(noise), placement=noise.placement) for noise in spec.noise),
        repeats=spec.repeats,
        duration_s=spec.duration_s,
        settle_s=spec.settle_s or None,
        restarts=spec.restarts,
        rotate=spec.rotate,
    )


def _resolve_subject(actor: CaseWorkload, kind: str, location: str) -> Subject:
    """Return a workload; where it is known and does not run on this kind of device, it is unfit and not unknown."""
    # As the values would be written on the command line.
    params = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in actor.params.items()
    }
    try:
        subject = registry.resolve_subject(actor.workload, device_kind=kind, explicit=params)
    except MachineCannot as error:
        raise CaseDoesNotFit(_error_clause(error)) from None
    except BadInput as error:
        if _runs_elsewhere(actor.workload, params, "cpu" if kind == "cuda" else "cuda"):
            raise CaseDoesNotFit(_error_clause(error)) from None
        raise BadInput(f"{location}: {error}") from None
    library = LIBRARIES.get(subject.impl)
    if library is not None and find_spec(subject.impl) is None:
        raise CaseDoesNotFit(f"{subject.label} needs {library}, which is not installed")
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


def _resolve_devices(names: tuple[str, ...], machine: Machine, kind: str) -> tuple[str, ...]:
    """Return the devices that a file names, by number, UUID or name."""
    if not names:
        return ()
    named = tuple(name if ":" in name or not name.isdigit() else f"{kind}:{name}" for name in names)
    try:
        by_uuid = all(name.startswith(("GPU-", "MIG-")) for name in named)
        chosen = choose_devices(machine, gpus=named) if by_uuid else choose_devices(machine, devices=named)
    except MachineCannot as error:
        raise CaseDoesNotFit(_error_clause(error)) from None
    if kind_of(chosen[0]) != kind:
        raise CaseDoesNotFit(f"{chosen[0]} is not among the devices of this run")
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
        BadInput: A workload or a parameter does not exist; the sentence has the line of the file.
        MachineCannot: No case fits, but for idleness.
    """
    kind = kind_of(devices[0])
    cases: list[CharacterizeCase] = []
    skipped: list[SkippedCase] = []
    for spec in specs:
        try:
            cases.append(_resolve_case(spec, machine, kind))
        except CaseDoesNotFit as reason:
            skipped.append(SkippedCase(case=spec.name, reason=str(reason)))
    unfit = {case.case: case.reason for case in skipped}
    if cases:
        every = add_idle_baseline(tuple(cases), kind)
        options = CharacterizeOptions(cases=every, skipped=tuple(skipped), devices=devices, **settings)
        unfit = skipped_reasons(machine, options)
        if not unfit or not all(is_idle(case) or case.name in unfit for case in options.cases):
            return options
    name, reason_text = next(iter(unfit.items()))
    raise MachineCannot(f"No case can be measured here; {name!r}: {reason_text}.")


def skipped_reasons(machine: Machine, options: CharacterizeOptions) -> dict[str, str]:
    """Return the cases that are skipped, each with the reason."""
    unfit = {case.name: misfit_reason(machine, options, case) for case in options.cases}
    too_large = {name: reason for name, reason in unfit.items() if reason is not None}
    return {**too_large, **{skipped.case: skipped.reason for skipped in options.skipped}}


def fit_budget(machine: Machine, options: CharacterizeOptions) -> tuple[CharacterizeOptions, float]:
    """Return the options with timing and settling shortened until one repeat fits the budget, and to which share.

    Raises:
        BadInput: It would have to be shorter than is worth anything.
    """
    if options.budget_s is None:
        return options, 1.0
    placed_cases = place_cases(machine, options, 1)
    whole_s = sum(trial_duration_s(build_trial(options, placed)) for placed in placed_cases)
    cases = [placed.case for placed in placed_cases]
    shrinking_s = sum(case.duration_s + case.restarts * (case.settle_s or 0.0) for case in cases)
    share = min(1.0, 1 - (whole_s - options.budget_s) / shrinking_s)
    shortest_s = min(case.duration_s for case in cases)
    if share * shortest_s < min(SHORTEST_TRIAL_S, shortest_s):
        least_s = whole_s - shrinking_s * (1 - SHORTEST_TRIAL_S / shortest_s)
        raise BadInput(
            f"--budget {format_duration(options.budget_s)} is too little for a repeat of {len(cases)} trials, "
            f"which with starting take {format_duration(least_s)} at least; fewer --case or --gpus, or --no-rotate, "
            "need less."
        )

    def shorten(case: CharacterizeCase) -> CharacterizeCase:
        settle_s = None if case.settle_s is None else case.settle_s * share
        return case.model_copy(update={"duration_s": case.duration_s * share, "settle_s": settle_s})

    return options.model_copy(update={"cases": tuple(map(shorten, options.cases))}), share
