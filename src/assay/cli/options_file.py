"""``--options``: flags by name from a YAML or JSON file, or the ``plan.json`` of another run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.core import ParameterSource
from pydantic import ValidationError

from assay.cli.host_options import HostOption
from assay.core.errors import BadInput, suggest_nearest
from assay.core.files import check_path
from assay.core.values import first_problem
from assay.core.yaml_input import read_settings

if TYPE_CHECKING:
    import click
    from pydantic import JsonValue

    from assay.core.values import Value
    from assay.experiments.base import Experiment


OUTPUT_OPTIONS = {"output", "report", "reports", "update_config", "config", "baseline", "unsure"}
"""What is done with results, which is no part of a plan."""
ALLOWED_WITH_PLAN = OUTPUT_OPTIONS | {
    "apply", "file", "output_dir", "as_json", "dry_run", "name_host", "monitor", "monitor_interval", "history",
}  # fmt: skip


def merge_options_file(
    ctx: click.Context, flags: dict[str, Any], file: Path, experiment: Experiment[Any]
) -> dict[str, Any]:
    """Return the options with those of a file filled in; what was said on the command line wins."""
    content = read_settings(file)
    if not isinstance(content, dict):
        raise BadInput(f"{file} holds no options: it must map option names to values.")
    if "experiment" in content and "options" in content:
        _refuse_options_with_plan(ctx, file)
        if content["experiment"] != experiment.name:
            raise BadInput(f"{file} is the plan of another experiment ({content['experiment']}).")
        return {**flags, "options": _options_from_plan(content["options"], file, experiment)}
    parameters = {_plain(name): p for p in ctx.command.params for name in (*p.opts, p.name or "")}
    filled = dict(flags)
    for name, value in content.items():
        parameter = parameters.get(_plain(name))
        if isinstance(parameter, HostOption):
            raise BadInput(f"{file}: where it is run is said on the command line, with {parameter.opts[0]}.")
        if parameter is None or parameter.name in {None, "file"}:
            raise BadInput(f"{file} has an unknown option {name!r}.{suggest_nearest(_plain(name), parameters)}")
        if ctx.get_parameter_source(str(parameter.name)) != ParameterSource.COMMANDLINE:
            filled[str(parameter.name)] = _parse_value(ctx, parameter, value, f"{file}: {name}")
    return filled


def _refuse_options_with_plan(ctx: click.Context, file: Path) -> None:
    """A plan is whole: say so when the command line wants to change a part of it."""
    extra_flags = [
        max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if parameter.name not in ALLOWED_WITH_PLAN
        and ctx.get_parameter_source(str(parameter.name)) == ParameterSource.COMMANDLINE
    ]
    if extra_flags:
        raise BadInput(f"{file} is the whole plan of a run; {', '.join(extra_flags)} cannot change it.")


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _parse_value(ctx: click.Context, parameter: click.Parameter, value: JsonValue, where: str) -> object:
    """Return a value as the command line would read it."""
    import click

    several = parameter.multiple if isinstance(parameter, click.Option) else parameter.nargs == -1
    words = [str(item) for item in value] if isinstance(value, list) else str(value)
    if several and isinstance(words, str):
        words = [words]
    if not several and not isinstance(words, str):
        raise BadInput(f"{where} takes one value, not a list.")
    try:
        read = parameter.process_value(ctx, words)
    except (click.UsageError, BadInput) as error:
        raise BadInput(f"{where}: {error.format_message() if isinstance(error, click.UsageError) else error}") from None
    if isinstance(parameter.type, click.Path) and isinstance(read, Path):
        check_path(read)
    return read


def _options_from_plan(options: JsonValue, file: Path, experiment: Experiment[Any]) -> Value:
    try:
        planned: Value = experiment.options_type.model_validate(options)
    except ValidationError as error:
        raise BadInput(f"{file}: options: {first_problem(error)}.") from None
    return planned
