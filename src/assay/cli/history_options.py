"""Which part of the history is meant: the options that its verbs share."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.results import Origin
    from assay.store.history.asking import Wanted

    _Float = click.ParamType[float]
else:
    _Float = click.ParamType

FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")
ORIGINS = ("real", "fake", "simulated", "all")
_BACK = re.compile(r"(\d+(?:\.\d+)?)\s*([hdwmy])")
_HOURS = {"h": 1.0, "d": 24.0, "w": 7 * 24.0, "m": 30 * 24.0, "y": 365 * 24.0}


class Since(_Float):
    """A moment in seconds since 1970, from a date, a time, or how long ago: "2026-11-01", "90d", "2w"."""

    name = "since"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        text = str(value).strip().lower()
        name = param.opts[0] if param is not None else "--since"
        try:
            if back := _BACK.fullmatch(text):
                return (datetime.now(UTC) - timedelta(hours=float(back[1]) * _HOURS[back[2]])).timestamp()
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.astimezone()).timestamp()
        except OverflowError:
            raise BadInput(f"{name} {value} is before the first year or after the last that a date can have.") from None
        except ValueError:
            raise BadInput(f"{name} {value} is not a time; write 2026-11-01, or 12h, 30d, 8w, 6m, 1y ago.") from None


def filtered(*, origin: str) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds the filters, with the origin of numbers that is usual for the verb."""

    def add(function: FunctionT) -> FunctionT:
        for option in (
            click.option(
                "--origin", type=click.Choice(ORIGINS), default=origin, show_default=True, help="Of the numbers."
            ),
            click.option("--since", type=Since(), metavar="30d", help="Runs since then: a date, or how long ago."),
            click.option("--gpu", metavar="NAME", help="Of this GPU: a part of its name or UUID."),
            click.option("--workload", metavar="NAME", help="Of this workload, such as softmax or softmax@numpy."),
        ):
            function = option(function)
        return function

    return add


def wanted(given: Mapping[str, Any]) -> Wanted:
    """Return what the filters mean."""
    from assay.store.history.asking import Wanted

    return Wanted(
        workload=given["workload"], gpu=given["gpu"], since_s=given["since"], origins=origins_of(given["origin"])
    )


def origins_of(origin: str) -> tuple[Origin, ...] | None:
    """Return the origins that a word means; null: all of them."""
    all_origins: tuple[Origin, ...] = ("real", "fake", "simulated")
    return tuple(name for name in all_origins if name == origin) or None
