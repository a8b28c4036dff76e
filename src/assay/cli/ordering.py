"""What was said on the command line as an order for a host: the words that are sent, and what they need."""

from __future__ import annotations

import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from assay.cli.params import Duration, as_given
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from assay.hosts.base import Order, Shipped

    _Float = click.ParamType[float]
else:
    _Float = click.ParamType


class TimeLimit(Duration):
    """Seconds from "30m", "2h", or Slurm's "HH:MM:SS"; a bare number would be minutes to some and seconds to others."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        from assay.hosts.slurm.queue import seconds

        text = str(value)
        if re.fullmatch(r"\s*[0-9.]+\s*", text):
            raise BadInput(f"--time {text} could be seconds or minutes; write {text.strip()}m or HH:MM:SS.")
        if ":" in text or "-" in text:
            parsed_s = seconds(text)
            if not parsed_s:
                raise BadInput(f"--time {text} is not a time; write 30m, 2h or HH:MM:SS.")
            return parsed_s
        return super().convert(value, param, ctx)


class Dollars(_Float):
    """An amount of money above nothing: "1.50", or "$1.50"."""

    name = "usd"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return dollars."""
        try:
            usd = float(str(value).strip().removeprefix("$"))
        except ValueError:
            usd = math.nan
        if not (0 < usd < math.inf):
            raise BadInput(f"--max-cost {value} is no amount of money; write dollars above nothing, such as 1.50.")
        return usd


def order_of(
    ctx: click.Context,
    given: Mapping[str, Any],
    host: str,
    place: str | None,
    *,
    but: frozenset[str],
    ships: bool = False,
) -> Order:
    """Return what is to be run elsewhere, and on what; options ``but`` these are sent, and files where it ``ships``."""
    import secrets
    from datetime import datetime
    from pathlib import Path
    from shutil import get_terminal_size

    from assay.hosts.base import Order

    if place is not None and given["partition"] not in {None, place}:
        raise BadInput(f"--on {host}:{place} and --partition {given['partition']} are two partitions.")
    cwd = Path.cwd()
    number = secrets.token_hex(8)
    output_dir = Path(given.get("output_dir") or given["run"].parent).absolute()
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    remote = given["remote_python"]
    python = sys.executable
    files: tuple[Shipped, ...] = ()
    words = inner_words(ctx, but)
    if ships:
        from assay.cli.shipping import sent_along
        from assay.hosts.remote.environment import PYTHON

        python = PYTHON
        cwd, words, files = sent_along(ctx, given, words, number)
    return Order(
        id=number,
        words=words,
        cwd=str(cwd),
        folder=str(output_dir / f"{host}-{stamp}-{number[:4]}"),
        output_dir=str(output_dir),
        place=place or given["partition"],
        nodes=given["nodes"] or 1,
        processes=given["nproc"] or _gpus(given) or 1,
        limit_s=given["time"],
        arguments=(
            *(f"--{key.replace('_', '-')}={given[key]}" for key in ("account", "gres", "gpus_per_node") if given[key]),
            *given["sbatch_args"],
        ),
        python=remote or python,
        python_path=None if remote or ships else _absolute(os.environ.get("PYTHONPATH", "")),
        columns=max(20, get_terminal_size().columns),
        files=files,
        image=given["image"],
        max_cost_usd=given["max_cost"],
    )


def _gpus(given: Mapping[str, Any]) -> int | None:
    """Return how many GPUs a node is asked to have, where that is said."""
    for text in (given["gpus_per_node"], given["gres"]):
        if match := re.fullmatch(r"(?:gpu:)?(?:[^:,=]+[:=])?(\d+)", text or ""):
            return int(match[1])
    return None


def _absolute(python_path: str) -> str | None:
    from pathlib import Path

    return os.pathsep.join(str(Path(entry).absolute()) for entry in python_path.split(os.pathsep) if entry) or None


def inner_words(ctx: click.Context, but: frozenset[str]) -> tuple[str, ...]:
    """Return the verb and its words, without those that say where."""
    mine = {name: p for p in ctx.command.params if p.name in but for name in (*p.opts, *p.secondary_opts)}
    words = list(as_given(ctx))
    cut = words.index("--") if "--" in words else len(words)
    return (*ctx.command_path.split()[1:], *_without(words[:cut], mine), *words[cut:])


def _without(words: Iterable[str], mine: Mapping[str, click.Parameter]) -> list[str]:
    remaining: list[str] = []
    skipping = False
    for word in words:
        name, equals, _ = word.partition("=")
        parameter = mine.get(name.replace("_", "-")) if name.startswith("--") else None
        if skipping:
            skipping = False
        elif parameter is None:
            remaining.append(word)
        else:
            skipping = not equals and not getattr(parameter, "is_flag", False)
    return remaining
