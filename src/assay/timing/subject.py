"""A function of the user's, bound to its arguments and looked at before it is timed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, BadInput, TrialFailed
from assay.timing.deadline import limited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from assay.timing.instrument import Call

_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_UNDONE = (inspect.iscoroutine, inspect.isgenerator, inspect.isasyncgen)
FIRST_CALLS = 3
FIRST_CALLS_S = 1.0
"""So many calls, unless the first ones take longer than this."""
LOOKED_AT = 4096
"""Elements of an argument that are compared before and after."""


@dataclass(frozen=True)
class Bound:
    """A call without arguments, its name, and the arguments it was given."""

    name: str
    call: Call
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True)
class FirstCalls:
    """What the first calls showed: whether all gave the same kind of result, the time of the shortest, what to say."""

    steady: bool
    least_us: float
    notes: tuple[str, ...] = ()


def bind(
    function: Callable[..., object],
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    name: str | None = None,
) -> Bound:
    """Return a function with its arguments.

    Raises:
        BadInput: It is no function, does nothing when called, or takes other arguments.
    """
    named = name or getattr(function, "__qualname__", None) or type(function).__name__
    if not callable(function):
        raise BadInput(f"{named} cannot be called: give a function, such as lambda: f(x).")
    if any(lazy(function) for lazy in _LAZY):
        raise BadInput(_lazy(named))
    named_args = dict(kwargs or {})
    try:
        inspect.signature(function).bind(*args, **named_args)
    except TypeError as error:
        raise BadInput(f"{named}: {error}. Give args=(…) and kwargs={{…}}, or wrap it: lambda: f(x).") from None
    except ValueError:
        pass  # some functions written in C do not say what they take
    call = functools.partial(function, *args, **named_args) if args or named_args else function
    return Bound(named, call, (*args, *named_args.values()))


def _lazy(name: str) -> str:
    return f"{name} only makes a coroutine or generator when called; wrap it in a plain function."


def first_calls(
    bound: Bound, finish: Callable[[], None], limit_s: float, before_each: Call | None = None, *, at_least: int = 1
) -> FirstCalls:
    """Make the first calls: what fails, fails here, and what compiles, compiles here.

    Slow ones are made ``at_least`` so often: where their time counts, twice, as the first may have compiled.

    Raises:
        TrialFailed: The function raises, or does not return within the limit.
        BadInput: It only makes a coroutine or generator.
    """
    before = [_digest(argument) for argument in bound.arguments]
    kinds: list[str] = []
    start = time.perf_counter()
    took_s: list[float] = []
    while len(kinds) < FIRST_CALLS and (len(kinds) < at_least or time.perf_counter() - start < FIRST_CALLS_S):
        begin = time.perf_counter()
        kinds.append(_kind(_called(bound, finish, limit_s, before_each)))
        took_s.append(time.perf_counter() - begin)
    notes = []
    if len(set(kinds)) > 1:
        notes.append(f"its calls differ: one returned {kinds[0]}, another {next(k for k in kinds if k != kinds[0])}")
    changed = [i for i, argument in enumerate(bound.arguments) if before[i] != _digest(argument)]
    if changed:
        which = ", ".join(str(i) for i in changed)
        notes.append(f"it changes its arguments (number {which}): each call works on what the last one left")
    return FirstCalls(steady=len(set(kinds)) == 1, least_us=min(took_s) * 1e6, notes=tuple(notes))


def _called(bound: Bound, finish: Callable[[], None], limit_s: float, before_each: Call | None) -> object:
    with blamed(bound.name), limited(limit_s, bound.name):
        if before_each is not None:
            before_each()
        result = bound.call()
        finish()
    if any(undone(result) for undone in _UNDONE):
        if inspect.iscoroutine(result):
            result.close()  # or Python complains that nobody awaited it
        raise BadInput(_lazy(bound.name))
    return result


@contextlib.contextmanager
def blamed(name: str) -> Iterator[None]:
    """Say of whatever is raised in a block that a function of the user's raised it.

    Raises:
        TrialFailed: With what was raised as its cause.
    """
    try:
        yield
    except AssayError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300]
        raise TrialFailed(f"{name} raised {type(error).__name__}{f': {text}' if text else ''}") from error


def _kind(value: Any) -> str:
    """Return what kind of thing a value is: its type, and the shape and element type of an array."""
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of ({', '.join(_kind(part) for part in value[:16])})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{type(value).__name__} {dtype}{tuple(shape)}"
    return type(value).__name__


def _digest(value: Any) -> object:
    """Return what changes when an array's content does, of a part where it is large; null for what cannot be read."""
    if not (hasattr(value, "shape") and hasattr(value, "reshape")):
        return None
    try:
        flat = value.detach().reshape(-1) if hasattr(value, "detach") else value.reshape(-1)
        part = flat[:: max(1, len(flat) // LOOKED_AT)]
        if hasattr(part, "cpu"):
            part = part.cpu().contiguous().view(sys.modules["torch"].uint8).numpy()
        return part.tobytes()
    except Exception:  # noqa: BLE001 - sparse or foreign arrays: to look at them is a courtesy
        return None
