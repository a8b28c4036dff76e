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
from assay.core.errors import AssayError, BadInput
from assay.core.files import check_path, lease_folder
from assay.core.format import parse_duration_s, parse_fraction
from assay.core.values import Value, explain_problem, first_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic.fields import FieldInfo

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


def option_of(model: type[Value], name: str, *opts: str, help: str = "", **rest: Any) -> Any:  # noqa: A002 - named as click names it
    """Return a flag with the default, the bounds and the description of a field of an experiment's options."""
    field = model.model_fields[name]
    bounds = {key: value for part in field.metadata for key, value in vars_of(part).items()}
    return flag(*opts, help=help or field.description or "", **{"default": field.default, **bounds, **rest})


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


class Flags(BaseModel):
    """The flags of a verb, and the command line they stood on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    line: CommandLine = Field(default=CommandLine(), exclude=True)

    @classmethod
    def read(cls, values: Mapping[str, Any], line: CommandLine, where: str = "") -> Self:
        """Return the flags from what was given, as text; ``where`` begins messages about a file.

        Raises:
            BadInput: One makes no sense; the sentence names the flag.
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

    def fill(self, model: type[ModelT], **resolved: Any) -> ModelT:
        """Return an experiment's options: the flags of the same names, and what was resolved from the others.

        A flag that was not given and has no default leaves the options' own default.
        """
        own = type(self).model_fields.keys() & model.model_fields.keys() - resolved.keys()
        values = {name: value for name in own if (value := getattr(self, name)) is not None}
        try:
            return model.model_validate({**values, **resolved})
        except ValidationError as error:
            raise BadInput(f"{first_problem(error)}.") from None


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
    names = [name for owner in flags.__mro__ for name in vars(owner).get("__annotations__", {})]
    last = {name: index for index, name in enumerate(names)}  # an overridden flag stays where its base has it
    fields = [name for name in sorted(last, key=last.__getitem__) if _is_flag(flags, name)]
    rows = [flag_row(flags, name) for name in fields]
    return tuple(sorted(rows, key=lambda row: (bool(row.opts), GROUPS.index(row.group))))


def _is_flag(flags: type[Flags], name: str) -> bool:
    return name in flags.model_fields and spec_of(flags.model_fields[name]) is not None


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
    return f"{row.title}: {explain_problem(problem)}"


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


class JsonFlags(Flags):
    """A verb whose result can be printed as JSON."""

    as_json: bool = output_flag("--json", default=False, help="Print the result as JSON.")


class UnsureFlags(Flags):
    """A gate that may be inconclusive."""

    unsure: Literal["pass", "fail"] = decide_flag(default="pass", help="Gate result if inconclusive.")


class RegressionGateFlags(Flags):
    """A comparison that can be a gate."""

    fail_on_regression: bool = decide_flag(default=False, help="Exit with code 1 on a regression.")


def min_effect_flag(default: float, group: str = DECISION) -> Any:
    """Return the flag of the smallest effect worth reporting."""
    return flag(default=default, gt=0, lt=1, group=group, help="Ignore effects smaller than this.")


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


def cache_flag() -> Any:
    """Return the flag of what is in the GPU's L2 cache."""
    return how_flag(default=None, shown="cold", help="GPU L2 cache before each call.")


def seed_flag() -> Any:
    """Return the flag of the random seed."""
    return how_flag("--seed", default=0, help="Random seed.")


LATEST_RUN = Path("runs/latest")


def output_dir_flag(**rest: Any) -> Any:
    """Return the flag of the folder that run folders are created in."""
    return output_flag("--output-dir", **{"default": Path("runs"), "help": "Folder for run folders.", **rest})


def parse_usd(text: str) -> float:
    """Return US dollars from "1.50" or "$1.50"; above nothing."""
    try:
        usd = float(text.strip().removeprefix("$"))
    except ValueError:
        usd = math.nan
    if not 0 < usd < math.inf:
        raise BadInput(f"--max-cost must be a positive amount in USD, e.g. 1.50, not {text!r}.")
    return usd
