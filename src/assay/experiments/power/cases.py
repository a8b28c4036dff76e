"""The case file: what is timed on how many GPUs, with which concurrent load, how often. YAML; errors name the line.

defaults: {base: {workload: sgemm}, repeats: 3}
cases:
  - name: sgemm on {gpus} GPUs
    base: {gpus: [1, 2]}                                            a list makes a case of each: two
  - name: sgemm beside {noise_gpus} ResNet-50, {placement}
    noise: [{workload: resnet50, gpus: [1, 2], placement: [near, far]}]     and here four

Nothing here depends on a machine: which GPUs a case gets is decided when it is placed.
"""

from __future__ import annotations

import itertools
import string
from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from assay.core.errors import BadInput, suggest_nearest
from assay.core.format import MAX_REPEATS, parse_duration_s
from assay.core.values import Params, Value
from assay.core.yaml_input import read_settings
from assay.experiments.file_locator import FileLocator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDLE = "idle"
"""The workload that does nothing; of it every GPU takes part unless a number is given."""

Placement: TypeAlias = Literal["near", "far", "any", "same"]
Count: TypeAlias = int | Literal["all"]
PLACEHOLDERS = ("gpus", "noise_gpus", "workload", "noise", "placement")
REPEATS, DURATION_S, SETTLE_S, RESTARTS = 3, 20.0, 120.0, 1


class BaseSpec(Value):
    """What is timed, and on how many GPUs at once; or on which."""

    workload: str | None = None
    params: Params = Field(default_factory=dict)
    gpus: tuple[Count, ...] = ()
    devices: tuple[str, ...] = Field(default=(), description="These very ones, by number, UUID or name.")

    @field_validator("gpus", mode="before")
    @classmethod
    def _counts(cls, value: object) -> object:
        several = value if isinstance(value, list | tuple) else [value]
        whole = [n for n in several if n == "all" or (isinstance(n, int) and not isinstance(n, bool) and n >= 1)]
        if not several or len(whole) < len(several):
            raise ValueError(f"must be a number of GPUs from 1 on, all, or a list of such, and not {value!r}")
        return tuple(several)

    @field_validator("devices", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        several = value if isinstance(value, list | tuple) else [value]
        if not several or not all(isinstance(one, int | str) and not isinstance(one, bool) for one in several):
            raise ValueError(f"must be GPUs by number, UUID or name, and not {value!r}")
        return tuple(map(str, several))


class NoiseSpec(BaseSpec):
    """What runs beside it untimed, and where: on GPUs near to the timed ones, far from them, any, or on the same."""

    placement: tuple[Placement, ...] = ("any",)

    @field_validator("placement", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        words = value if isinstance(value, list | tuple) else [value]
        allowed = ("near", "far", "any", "same")
        strange = [word for word in words if word not in allowed]
        if strange or not words:
            near = suggest_nearest(str(strange[0]), allowed) if strange else ""
            raise ValueError(
                f"must be near, far, any or same, and not {strange[0] if strange else words!r}.{near}".rstrip(".")
            )
        return tuple(words)


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
    """What holds for cases that say nothing else."""

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
        raise BadInput(f"{locations[-1]}: {_duplicate_name_reason(duplicates[0], locations)}.")
    return tuple(specs)


def _duplicate_name_reason(name: str, locations: list[str]) -> str:
    if len(set(locations)) < len(locations):
        parts = ", ".join(f"{{{word}}}" for word in PLACEHOLDERS)
        return f"the lists in case {name!r} make several cases of one name; put {parts} into it, whichever differs"
    return f"two cases are named {name!r}"


def _keys_at(key_path: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the keys that are known at a place of the file."""
    words = [part for part in key_path if isinstance(part, str)]
    model: type[Value] = CaseFile
    if words:
        models: dict[str, type[Value]] = {
            "defaults": CaseDefaults,
            "cases": CaseEntry,
            "base": BaseSpec,
            "noise": NoiseSpec,
        }
        model = models.get(words[-1], CaseFile)
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _expand_entry(entry: CaseEntry, defaults: CaseDefaults, location: str) -> Iterator[CaseSpec]:
    """Give a case for each combination of what an entry lists."""
    base = _with_defaults(entry.base, defaults.base, location)
    for noise in entry.noise:
        _check_base(noise, location)
    settings = {
        name: value
        for name in ("repeats", "duration_s", "settle_s", "restarts", "rotate")
        if (value := getattr(entry, name) if getattr(entry, name) is not None else getattr(defaults, name)) is not None
    }
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
