"""Flags as typed values: one class of flags for each verb, and the decorator that makes a function a verb.

    class TimeFlags(JsonFlags):
        targets: tuple[str, ...] = argument("TARGET...")
        processes: int = how_flag(default=5, ge=1, help="Number of fresh processes.")

    @verb("time", TimeFlags)
    def time_targets(flags: TimeFlags) -> int:
        '''Time a function or workload.'''

A field's type, bounds and unit say how its text is read: ``budget_s`` takes a duration, a float between 0 and 1 a
percentage, a `Literal` one of its words. `option_of` takes type, bounds, default and description from an experiment's
options, where they are stated once. After a change run ``make flag-table``, which writes what ``--help`` shows.
"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin

import click
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from assay.cli.commands import OTHER, OUTPUT, CommandLine, FlagRow, VerbRow
from assay.core.errors import AssayError, BadInput, GateFailed
from assay.core.files import check_path, find_control_character, lease_folder
from assay.core.format import MAX_PROCESSES, MAX_REPEATS, parse_duration_s, parse_fraction
from assay.core.values import Cache, InterferencePolicy, Isolation, Value, explain_problem, first_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic.fields import FieldInfo

    from assay.core.results import Verdict
    from assay.machine.model import Machine

FlagsT = TypeVar("FlagsT", bound="Flags")
ModelT = TypeVar("ModelT", bound=Value)

WHAT = "What to measure"
DECISION = "How to decide"
HOW = "How to measure"
MONITORING = "Monitoring and history"
REMOTE = "Remote machines"
SLURM = "Slurm"
RENTAL = "Rented GPUs"
GROUPS = (OTHER, WHAT, DECISION, HOW, OUTPUT, MONITORING, REMOTE, SLURM, RENTAL)
"""The groups of the help, in order."""
HOST_GROUPS = frozenset({REMOTE, SLURM, RENTAL})
"""Flags of these groups say where a verb runs; they are accepted on the command line only."""

GPU = r"\d+(/\d+)?|(GPU|MIG)-\S+"
DEVICE = r"(cpu|cuda)(:\d+(/\d+)?)?"
NUMBER = r"[+-]?\d+"
NAME = r"[^-\s]\S*"
"""Patterns of the items of lists."""

UNITS = ("_s", "_w", "_usd", "_mhz")
"""Units at the end of a field's name, which the flag does not have."""
FLAG_NAMES = {"minimum_effect": "min-effect", "retakes": "retake-disturbed"}


class FlagSpec(NamedTuple):
    """What a field's type does not say of its flag."""

    opts: str = ""
    group: str = OTHER
    metavar: str = ""
    shown: str | None = None
    item: str = ""
    style: str = ""
    aliases: str = ""
    hidden: bool = False
    required: bool = False
    envvar: str | None = None
    parse: Callable[[str], object] | None = None


def flag(*opts: str, default: Any = None, help: str = "", spec: FlagSpec = FlagSpec(), **rest: Any) -> Any:  # noqa: A002, B008 - named as click names it
    """Return a field that is a flag; without names it is called as the field is, less its unit.

    ``rest`` are fields of `FlagSpec`, and bounds.
    """
    parts = {name: rest.pop(name) for name in FlagSpec._fields if name in rest}
    spec = spec._replace(**{"opts": " ".join(opts), **parts})
    extra: Any = {"flag": spec}
    return Field(default=default, description=help, json_schema_extra=extra, **rest)


def option_of(model: type[Value], name: str, *opts: str, optional: bool = False, help: str = "", **rest: Any) -> Any:  # noqa: A002 - named as click names it
    """Return a flag with the default, the bounds and the description of a field of an experiment's options.

    An ``optional`` one is null where it is not given, so that something else, such as ``--quick``, can decide.
    """
    field = model.model_fields[name]
    bounds = {key: value for part in field.metadata for key, value in vars_of(part).items()}
    own = {"default": None, "shown": default_text(name, field)} if optional else {"default": field.default}
    return flag(*opts, help=help or field.description or "", **{**own, **bounds, **rest})


def vars_of(bound: object) -> dict[str, Any]:
    """Return a bound of a field by its name: ``{"ge": 1}``."""
    return {name: getattr(bound, name) for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)}


def argument(metavar: str, *, default: Any = None, required: bool = False, **rest: Any) -> Any:
    """Return a field that is given by its position."""
    return flag(default=default, metavar=metavar, required=required, style="argument", **rest)


what_flag = partial(flag, group=WHAT)
decide_flag = partial(flag, group=DECISION)
how_flag = partial(flag, group=HOW)
output_flag = partial(flag, group=OUTPUT)
record_flag = partial(flag, group=MONITORING)
how_option = partial(option_of, group=HOW)


class Flags(BaseModel):
    """The flags of a verb, and the command line they stood on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    line: CommandLine = Field(default=CommandLine(), exclude=True)

    @classmethod
    def read(cls, values: Mapping[str, Any], line: CommandLine, where: str = "") -> Self:
        """Return the flags from what was given, as text; ``where`` begins messages about a file.

        Raises:
            BadInput: A value is invalid; the message names the flag.
        """
        try:
            flags = cls.model_validate({**values, "line": line})
        except ValidationError as error:
            raise BadInput(f"{where}{describe_problem(cls, error)}.") from None
        except BadInput as error:
            raise BadInput(f"{where}{error}") from None
        for name in values:
            value = getattr(flags, name)
            for path in value if isinstance(value, tuple) else (value,):
                if isinstance(path, Path):
                    check_path(path)
        return flags

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        field = cls.model_fields[name]
        spec = spec_of(field)
        if name == "line" or spec is None:
            return value
        if spec.group in HOST_GROUPS:
            refuse_control_characters(cls, name, value)
        if spec.item and isinstance(value, tuple) and style_of(field, spec) == "list":
            value = tuple(part for text in value for part in re.split(r"[,\s]+", text) if part)
            if not value:
                raise BadInput(f"{flag_row(cls, name).title} needs at least one value.")
        parse = spec.parse or parser_of(name, field)
        if parse is None or not isinstance(value, str):
            return value
        try:
            return parse(value)
        except BadInput as error:
            title = flag_row(cls, name).title
            raise type(error)(str(error) if title in str(error) else f"{title}: {error}") from None

    def fill(self, model: type[ModelT], usual: Mapping[str, Any] | None = None, **resolved: Any) -> ModelT:
        """Return an experiment's options: the flags of the same names, and what was resolved from the others.

        For a flag that was not given and has no default, ``usual`` is used, else the options' own default.
        """
        own = type(self).model_fields.keys() & model.model_fields.keys() - resolved.keys()
        values = {name: value for name in own if (value := getattr(self, name)) is not None}
        try:
            return model.model_validate({**(usual or {}), **values, **resolved})
        except ValidationError as error:
            raise BadInput(f"{first_problem(error)}.") from None


def refuse_control_characters(flags: type[Flags], name: str, value: object) -> None:
    """Refuse line breaks and the like in values that end up in scripts and commands on other machines."""
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str) and (character := find_control_character(text)) is not None:
            title = flag_row(flags, name).title
            raise BadInput(f"{title} {text!r} contains the control character {character!r}; remove it.")


def spec_of(field: FieldInfo) -> FlagSpec | None:
    """Return what a field says of its flag; null: it is no flag."""
    extra = field.json_schema_extra
    spec = extra.get("flag") if isinstance(extra, dict) else None
    return spec if isinstance(spec, FlagSpec) else None


def bare_type(field: FieldInfo) -> Any:
    """Return the type of a field without "or none"."""
    annotation: Any = field.annotation
    if get_origin(annotation) in {Union, UnionType}:
        (annotation,) = [part for part in get_args(annotation) if part is not NoneType]
    return annotation


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """Return the words that a flag takes; none: it takes any."""
    kind = bare_type(field)
    kind = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()


def is_fraction(field: FieldInfo) -> bool:
    """Return whether a field is a share between 0 and 1."""
    bounds = {key: value for part in field.metadata for key, value in vars_of(part).items()}
    return bare_type(field) is float and bounds.get("gt") == 0 and bounds.get("lt") == 1


def parser_of(name: str, field: FieldInfo) -> Callable[[str], object] | None:
    """Return what reads the text of a flag; null: its type does."""
    if bare_type(field) is float and name.endswith("_s"):
        return partial(parse_duration_s, zero_ok=any(getattr(part, "ge", None) == 0 for part in field.metadata))
    return parse_fraction if is_fraction(field) else None


def style_of(field: FieldInfo, spec: FlagSpec) -> Any:
    """Return how a flag stands on the command line."""
    several = get_origin(bare_type(field)) is tuple
    if spec.style == "argument":
        return "arguments" if several else "argument"
    if spec.style:
        return spec.style
    return "switch" if bare_type(field) is bool else "list" if spec.item else "many" if several else "value"


def flag_row(flags: type[Flags], name: str) -> FlagRow:
    """Return a flag as help and messages need it."""
    field = flags.model_fields[name]
    spec = spec_of(field) or FlagSpec()
    style = style_of(field, spec)
    plain = FLAG_NAMES.get(name) or next((name.removesuffix(unit) for unit in UNITS if name.endswith(unit)), name)
    opts = "" if spec.style == "argument" else spec.opts or f"--{plain.replace('_', '-')}"
    if style == "switch" and field.default is not False and "/" not in opts:
        opts = f"{opts}/{opts.replace('--', '--no-', 1)}"
    shown = default_text(name, field) if spec.shown is None else spec.shown
    return FlagRow(
        name=name,
        opts=opts,
        style=style,
        metavar=spec.metavar or default_metavar(name, field, style),
        group=spec.group,
        help=f"{field.description or ''}{f'  [default: {shown}]' if shown else ''}".strip(),
        hidden=spec.hidden,
        required=spec.required,
        item=spec.item,
        aliases=spec.aliases,
        envvar=spec.envvar,
        choices=choices_of(field),
    )


def default_metavar(name: str, field: FieldInfo, style: str) -> str:
    """Return what stands for the value in help."""
    kind = bare_type(field)
    if style in {"switch", "argument", "arguments"}:
        return ""
    if choices := choices_of(field):
        return f"[{'|'.join(choices)}]"
    if parser_of(name, field) is not None:
        return "PERCENT" if is_fraction(field) else "TIME"
    return {int: "N", Path: "PATH"}.get(kind, "TEXT")


def default_text(name: str, field: FieldInfo) -> str:
    """Return a default as one would type it; nothing where there is none to speak of."""
    default = field.default
    if default in (None, False, True, (), "", 0) and not (default == 0 and bare_type(field) is int):
        return ""
    if is_fraction(field):
        return f"{100 * default:g}%"
    if parser_of(name, field) is not None:
        return f"{default / 60:g}m" if default % 60 == 0 else f"{default:g}s"
    return str(default)


def flag_rows(flags: type[Flags]) -> tuple[FlagRow, ...]:
    """Return all flags of a class in the order of the help: by group, the verb's own first."""
    group_of = {name: spec.group for name, field in flags.model_fields.items() if (spec := spec_of(field)) is not None}
    ordered: list[str] = []
    for owner in flags.__mro__:
        for name in vars(owner).get("__annotations__", {}):
            spec = spec_of(owner.model_fields[name]) if issubclass(owner, Flags) and name in group_of else None
            if spec is not None and spec.group == group_of[name]:  # an overridden flag stays where its base has it
                ordered = [*(other for other in ordered if other != name), name]
    rows = [flag_row(flags, name) for name in ordered]
    return tuple(sorted(rows, key=lambda row: (bool(row.opts), GROUPS.index(row.group))))


def describe_problem(flags: type[Flags], error: ValidationError) -> str:
    """Say what is wrong with a flag's value, and what it may be."""
    problem = error.errors()[0]
    name = str(problem["loc"][0])
    row, field = flag_row(flags, name), flags.model_fields[name]
    bounds = {key: value for part in field.metadata for key, value in vars_of(part).items()}
    value = f", not {problem['input']!r}"
    kind = str(problem["type"])
    if kind == "literal_error":
        return f"{row.title} must be {', '.join(row.choices[:-1])} or {row.choices[-1]}{value}"
    if kind.startswith(("greater_than", "less_than", "int_parsing_size")):
        low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
        above = "at least" if "ge" in bounds else "more than"
        limits = f"{above} {low}" if high is None else f"between {low} and {high}"
        return f"{row.title} must be {limits}{value}"
    if kind.startswith("int_"):
        return f"{row.title} must be a whole number{value}"
    if kind.startswith(("float_", "finite_")):
        return f"{row.title} must be a {'finite ' if kind == 'finite_number' else ''}number{value}"
    return f"{row.title}{':' if kind == 'value_error' else ''} {explain_problem(problem)}"


@dataclass(frozen=True)
class VerbFunction:
    """A verb's function, and the class of its flags."""

    path: str
    flags: type[Flags]
    function: Callable[[Any], int]
    warns_of_leftovers: bool = True


VERBS: dict[str, VerbFunction] = {}
"""The verbs of the modules imported so far."""


def verb(
    path: str, flags: type[FlagsT], *, warns_of_leftovers: bool = True
) -> Callable[[Callable[[FlagsT], int]], Callable[[FlagsT], int]]:
    """Make a function a verb. Its docstring is the help; indented lines are examples, printed as they are."""

    def register(function: Callable[[FlagsT], int]) -> Callable[[FlagsT], int]:
        VERBS[path] = VerbFunction(path, flags, function, warns_of_leftovers)
        return function

    return register


def run_verb(line: CommandLine, row: VerbRow, values: Mapping[str, Any]) -> int:
    """Import a verb, read its flags and run it; return its exit code."""
    importlib.import_module(row.module)
    called = VERBS[line.verb]
    flags = called.flags.read(values, line)
    if called.warns_of_leftovers:
        warn_about_leftovers()
    return called.function(flags)


MAX_NAMED_LEFTOVERS = 3
"""How many leases are listed at most; `assay reap` lists all of them."""


def warn_about_leftovers() -> None:
    """Warn on stderr about leftovers of crashed runs; quick where there is no lease at all."""
    try:
        if not any(lease_folder().glob("*.json")):
            return
        from assay.core.leases import find_orphaned_leases

        left = find_orphaned_leases()
    except AssayError:
        return  # whoever needs the home reports that it cannot be used
    if left:
        more = f" and {len(left) - MAX_NAMED_LEFTOVERS} more" if len(left) > MAX_NAMED_LEFTOVERS else ""
        names = "; ".join(lease.what for lease in left[:MAX_NAMED_LEFTOVERS])
        click.echo(f"warning: a crashed run left behind: {names}{more}. `assay reap` cleans up.", err=True)


LATEST_RUN = Path("runs/latest")


def parse_isolation(text: str) -> Isolation:
    """Return the isolation level with this name."""
    from assay.isolation.placement import parse_level

    return parse_level(text)


def parse_interval(text: str) -> float:
    """Return a sampling interval in seconds."""
    from assay.monitor.options import check_interval

    interval_s = parse_duration_s(text)
    check_interval(interval_s)
    return interval_s


def timeout_flag(default: float) -> Any:
    """Return the flag of how long a worker may be silent."""
    return how_flag("--timeout", default=default, gt=0, help="Worker response timeout.")


def gpus_flag(shown: str, *, several: bool = True) -> Any:
    """Return the flag that names GPUs; ``shown`` is the default."""
    metavar, what = ("0,1", "GPUs") if several else ("0", "GPU")
    return what_flag("--gpus", default=(), item=GPU, metavar=metavar, shown=shown, help=f"{what}, by index or UUID.")


def cpu_groups_flag(shown: str) -> Any:
    """Return the flag that splits the cores; ``shown`` is the default."""
    help_text = "Split the cores into this many groups (one device each)."
    return what_flag("--cpu-groups", ge=1, le=MAX_PROCESSES, shown=shown, help=help_text)


def cache_flag() -> Any:
    """Return the flag of what is in the GPU's L2 cache."""
    return how_flag(default=None, shown="cold", help="GPU L2 cache before each call.")


def seed_flag() -> Any:
    """Return the flag of the random seed."""
    return how_flag("--seed", default=0, help="Random seed.")


def output_dir_flag(**rest: Any) -> Any:
    """Return the flag of the folder that run folders are created in."""
    return output_flag("--output-dir", **{"default": Path("runs"), "help": "Folder for run folders.", **rest})


class JsonFlags(Flags):
    """A verb whose result can be printed as JSON."""

    as_json: bool = output_flag("--json", default=False, help="Print the result as JSON.")


class UnsureFlags(Flags):
    """A gate that may be inconclusive."""

    unsure: Literal["pass", "fail"] = decide_flag(default="pass", help="Gate result if inconclusive.")

    def apply_gate(self, gate: str, verdict: Verdict, headline: str) -> str:
        """Return what a gate says that is passed; ``gate`` names it.

        Raises:
            GateFailed: It is not.
        """
        if verdict == "no":
            raise GateFailed(f"{gate} says no. {headline}")
        if verdict == "unsure" and self.unsure == "fail":
            raise GateFailed(f"{gate} cannot tell, and --unsure fail says that is not enough. {headline}")
        return (
            f"{gate} {'is passed' if verdict == 'yes' else 'cannot tell, and lets it pass; --unsure fail would not'}."
        )


class RegressionGateFlags(Flags):
    """A comparison that can be a gate."""

    fail_on_regression: bool = decide_flag(default=False, help="Exit with code 1 on a regression.")


class HistoryFlags(Flags):
    """A verb whose results go into the history."""

    history: bool = record_flag(default=True, help="Save the results in the history.")


class ExperimentFlags(JsonFlags, HistoryFlags):
    """What every verb that runs an experiment takes: dealing with a busy machine, options files and run folders."""

    on_interference: InterferencePolicy = how_flag(
        default="warn", metavar="ACTION", help="What to do when other processes use the machine: warn, refuse or wait."
    )
    retakes: int = how_flag(default=0, ge=0, le=MAX_REPEATS, help="Retakes of a disturbed trial.")
    timeout_s: float = timeout_flag(120.0)
    options_file: Path | None = how_flag("--options", help="Read options from a YAML or JSON file.")
    name_host: bool = output_flag(default=False, help="Record the hostname in machine.json.")
    dry_run: bool = output_flag(default=False, help="Show what would be measured, then exit.")

    output_dir: Path | None = None
    monitor: bool = True
    monitor_interval_s: float | None = None


class DeviceFlags(Flags):
    """Which devices are measured."""

    gpus: tuple[str, ...] = gpus_flag("all")
    devices: tuple[str, ...] = what_flag(
        "--device", default=(), item=DEVICE, metavar="cpu", help="Devices: cpu, cpu:0, cuda:1."
    )
    cpu_groups: int | None = cpu_groups_flag("2")

    def choose_devices(self, machine: Machine) -> tuple[str, ...]:
        """Return the requested devices; by default all GPUs, or all groups of cores where there is none."""
        from assay.machine.devices import choose_devices

        return choose_devices(machine, gpus=self.gpus, devices=self.devices, cpu_groups=self.cpu_groups)

    def choose_first_device(self, machine: Machine) -> tuple[str, ...]:
        """Return the requested devices; where none is named, the first one alone."""
        chosen = self.choose_devices(machine)
        return chosen if self.gpus or self.devices else chosen[:1]

    def choose_one_device(self, machine: Machine) -> tuple[str, int | None]:
        """Return the one device to measure, and into how many groups the cores are split.

        Raises:
            BadInput: Several devices are named.
        """
        from assay.machine.devices import choose_devices

        groups = self.cpu_groups or (None if self.devices and self.devices != ("cpu",) else 1)
        device = choose_devices(machine, gpus=self.gpus, devices=self.devices, cpu_groups=groups)[0]
        named = self.gpus or [name for name in self.devices if ":" in name]
        if len(named) > 1:
            verb_name = f"assay {self.line.verb}"
            raise BadInput(f"`{verb_name}` measures one device, but {len(named)} are named; run it once for each.")
        return device, groups


class MeasureFlags(DeviceFlags, ExperimentFlags):
    """What most measuring verbs take."""

    seed: int = seed_flag()
    output_dir: Path = output_dir_flag()
    monitor: bool = record_flag(default=True, help="Record GPU and host sensors during the run.")
    monitor_interval_s: float | None = record_flag(
        gt=0, parse=parse_interval, shown="50ms on GPUs", help="Sampling interval."
    )


class IsolationFlags(Flags):
    """How workers are isolated from each other."""

    isolation: Isolation = how_flag(
        default="full", parse=parse_isolation, metavar="LEVEL", help="none, gpu, cpu, numa or full."
    )


class CacheFlags(Flags):
    """What is in the GPU's L2 cache when a call starts."""

    cache: Cache | None = cache_flag()

    def refuse_cold_cache(self, device: str) -> None:
        """Refuse `--cache cold` on a CPU."""
        if device.startswith("cpu") and self.cache == "cold":
            raise BadInput("--cache cold applies to GPUs only; remove it, or choose a GPU with --gpus.")


def min_effect_flag(default: float | type[Value], group: str = DECISION) -> Any:
    """Return the flag of the smallest effect worth reporting; its default may be that of an experiment's options."""
    value = default if isinstance(default, float) else default.model_fields["minimum_effect"].default
    return flag("--min-effect", default=value, gt=0, lt=1, group=group, help="Ignore effects smaller than this.")


def refuse_folder(path: Path) -> Path:
    """Return a path that is to be a file.

    Raises:
        BadInput: It is a folder.
    """
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file.")
    return path


OutputFile = Annotated[Path, AfterValidator(refuse_folder)]
"""A file that is written; not a folder."""


def parse_assignments(texts: tuple[str, ...]) -> dict[str, str]:
    """Return names and values from ``--param NAME=VALUE``, given any number of times."""
    pairs = [(text, *text.partition("=")) for text in texts]
    wrong = next((text for text, name, equals, _ in pairs if not name or not equals), None)
    if wrong is not None:
        raise BadInput(f"--param {wrong!r} must have the form NAME=VALUE.")
    return {name: value for _, name, _, value in pairs}


def param_flag(help: str = "Set a workload parameter.") -> Any:  # noqa: A002 - named as click names it
    """Return the flag that sets parameters of workloads."""
    return what_flag("--param", default=(), metavar="NAME=VALUE", help=help)


def metric_flag() -> Any:
    """Return the flag that reads numbers from what a command prints."""
    help_text = "Read a number that the command prints."
    return what_flag("--metric", default=(), metavar="NAME=REGEX", help=help_text)


def cooldown_flag() -> Any:
    """Return the flag of the pause between trials."""
    return how_flag(default=0.0, ge=0, help="Pause between trials.")


def parse_usd(text: str) -> float:
    """Return US dollars from "1.50" or "$1.50"; above nothing."""
    try:
        usd = float(text.strip().removeprefix("$"))
    except ValueError:
        usd = math.nan
    if not 0 < usd < math.inf:
        raise BadInput(f"--max-cost {text} must be a positive amount in USD, e.g. 1.50.")
    return usd
