"""An order on a machine that shares no files with this one: `run`, `collect`, `clean`, over any line.

    run      ship ─▶ prepare ─▶ look at the GPU ─▶ start, detached ─▶ follow what it prints ─▶ its exit code
    collect  the run folder comes back whole or not at all, is read, and stands under ``order.output_dir``
    end      what still runs of the order is asked to stop, then killed, and seen gone
    clean    the order's folder there is removed

A host that uses these has "ship" among its ``options``: then the command line sends the files that its words name, and
words that make sense there. Whoever creates the machine owns it: nothing here creates or gives back anything.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors, replace_atomically
from assay.core.errors import EXIT_STOPPED, MachineCannot, StopRequested
from assay.core.results import STAND_IN
from assay.core.units import format_span
from assay.hosts.base import Ended, Progress
from assay.hosts.remote.bringing import bring
from assay.hosts.remote.environment import PRELUDE, in_words, key_of, last_line, prepare
from assay.hosts.remote.frames import Frames, runs_there
from assay.hosts.remote.line import LineLost
from assay.hosts.remote.parcel import bundle, start_of
from assay.hosts.remote.there.folder import GONE, NO_ENVIRONMENT, NOTHING_THERE, WRONG_GPU
from assay.hosts.traces import ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from assay.hosts.base import Order, Watcher
    from assay.hosts.remote.line import Line, Said

GIVE_UP_S = 300.0
"""How long a lost line is tried again."""

UNHEARD_S = 600.0
"""An order that nobody has listened to for so long ends itself."""

TRIES, FIRST_PAUSE_S, LONGEST_PAUSE_S = 3, 0.2, 15.0
END_WITHIN_S, CLEAN_WITHIN_S = 120.0, 60.0


def run(line: Line, order: Order, watcher: Watcher) -> Ended:
    """Have an order run there to its end; hand on what is printed as it comes.

    A line that is lost meanwhile is taken up again, as the work goes on without it. When a signal stops us
    (`StopRequested`), the order is ended there and what it has measured is brought back, before the request goes on;
    `collect` need not be called then.

    Raises:
        MachineCannot: The GPU there is not the one asked for, no environment can be had, the disk is full.
        LineLost: The machine did not answer for so long that it was given up; what runs there ends by itself.
    """
    folder = Path(order.folder)
    with friendly_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(folder / ORDER, order.model_dump_json(indent=1).encode())
    frames = Frames(order, watcher)
    try:
        _begin(line, order, watcher, frames)
        while frames.ended is None:
            _again(line, order, watcher, frames)
    except StopRequested:
        with contextlib.suppress(MachineCannot):
            end(line, order)
            collect(line, order)
        raise
    finally:
        frames.flush()
    if frames.ended["why"] == "unkept":
        end(line, order)
    return verdict(frames.ended, order, line.where)


def collect(line: Line, order: Order) -> tuple[Path, ...]:
    """Return the order's run folder, brought here, read through, and set under ``order.output_dir``; or nothing.

    Safe to call again: what was brought is brought once more, in its newest state.

    Raises:
        MachineCannot: What came back is not a run, or cannot be written here.
        LineLost: The line broke.
    """
    for left in reversed(range(TRIES)):
        try:
            return bring(line, order, _in_folder(order, "send"))
        except LineLost:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def end(line: Line, order: Order) -> None:
    """End whatever still runs of an order there, and see it gone; nothing happens where nothing does."""
    result = line.do(_in_folder(order, "end", unless=GONE), within_s=END_WITHIN_S)
    if result.code not in {0, NOTHING_THERE}:
        raise MachineCannot(f"Processes of {order.name} are still on {line.where}: {_why(result)}.")


def clean(line: Line, order: Order) -> None:
    """Remove what an order left there; the environment stays for the next one."""
    result = line.do(f'{PRELUDE}rm -rf "$base/orders/{order.id}"', within_s=CLEAN_WITHIN_S)
    if result.code != 0:
        raise MachineCannot(f"The files of {order.name} are still on {line.where}: {_why(result)}.")


def job_of(order: Order, *, stand_in: bool = False) -> dict[str, Any]:
    """Return what the keeper there is told; nothing in it is secret."""
    environment = {"COLUMNS": str(order.columns), "ASSAY_HISTORY": "off", "PYTHONUNBUFFERED": "1"}
    if stand_in:
        environment[STAND_IN] = "1"
    return {
        "words": list(order.words),
        "start": start_of(order.files),
        "resumes": next((word for word in order.words if word.startswith(f"{runs_there(order.id)}/")), None),
        "environment": environment,
        "limit_s": order.limit_s,
        "unheard_s": UNHEARD_S,
        "gpu": order.gpu,
        "gpu_count": order.gpu_count if order.gpu else None,
    }


def verdict(ended: dict[str, Any], order: Order, where: str) -> Ended:
    """Return how an order ended; a reason where the Assay there could not tell it."""
    code, why, log = ended["code"], ended["why"], ended["log"]
    reasons = {
        "late": f"it was ended on {where} at its time limit"
        + (f" of {format_span(order.limit_s)} (--time)" if order.limit_s else ""),
        "unheard": f"it ended itself on {where}, as nobody had listened for {format_span(UNHEARD_S)}",
        "asked": f"somebody else ended it on {where}",
        "unkept": f"what watched over it on {where} was killed",
    }
    if why is not None:
        return Ended(exit_code=EXIT_STOPPED, reason=reasons.get(why, why))
    if code < 0:
        return Ended(exit_code=EXIT_STOPPED, reason=f"Assay was killed on {where} (signal {-code})")
    if not ended["answered"]:
        detail = f": {log}" if log else ""
        return Ended(exit_code=MachineCannot.exit_code, reason=f"Assay could not start on {where}{detail}")
    return Ended(exit_code=code)


def _begin(line: Line, order: Order, watcher: Watcher, frames: Frames) -> None:
    """Take the order in there, with an environment made first where there is none, and follow it."""
    key = key_of(order)
    script = (
        f'{PRELUDE}[ -f "$base/env/{key}/env" ] || exit {NO_ENVIRONMENT}\n. "$base/env/{key}/env"\n'
        f'exec "$python" -P -m assay.hosts.remote.there.begin "$base" {key} {order.id}'
    )
    _tell(watcher, "waits", f"{order.name} goes to {line.where}")
    result = _tried(line, script, order, frames)
    if result is not None and result.code == NO_ENVIRONMENT:
        _tell(watcher, "waits", f"{line.where} gets an environment for this version of Assay")
        prepare(line, order)
        result = _tried(line, script, order, frames)
    if result is None or result.code == 0 or frames.begun:
        return
    if result.code == WRONG_GPU:
        raise MachineCannot(f"--gpu-type {order.gpu} was asked for, and on {line.where} {_why(result)}.")
    raise MachineCannot(f"The order could not be started on {line.where}: {_why(result)}.")


def _tried(line: Line, script: str, order: Order, frames: Frames) -> Said | None:
    """Begin, and once more where the line was lost before anything was heard; null where it was lost later."""
    for left in reversed(range(TRIES)):
        try:
            return _listen(
                line, script, frames, bundle(order.files, job_of(order, stand_in=getattr(line, "stand_in", False)))
            )
        except LineLost:
            if frames.begun:
                return None
            if not left:
                raise
            time.sleep(FIRST_PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _again(line: Line, order: Order, watcher: Watcher, frames: Frames) -> None:
    """Follow from where we stopped, as soon as there is a line."""
    _tell(watcher, "runs", f"the line to {line.where} was lost; the work there goes on, and the line is tried again")
    deadline = time.monotonic() + GIVE_UP_S
    pause_s = FIRST_PAUSE_S
    while True:
        before = dict(frames.at)
        try:
            result = _listen(line, _in_folder(order, "follow", frames.at["o"], frames.at["e"]), frames)
        except LineLost:
            if frames.at != before:
                deadline, pause_s = time.monotonic() + GIVE_UP_S, FIRST_PAUSE_S
            if time.monotonic() > deadline:
                raise
        else:
            if frames.ended is None:
                raise MachineCannot(f"{order.name} is no longer on {line.where}: {_why(result)}.")
            return
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


def _listen(line: Line, script: str, frames: Frames, feed: Iterable[bytes] = ()) -> Said:
    frames.cut()
    return line.do(script, feed=feed, out=frames.take)


def _in_folder(order: Order, module: str, *words: object, unless: str | None = None) -> str:
    """Return a script that runs one of `there`'s modules on the order's folder, ``unless`` a file is there."""
    rest = " ".join(map(str, words))
    done = f'[ ! -f "$d/{unless}" ] || exit 0\n' if unless else ""
    return (
        f'{PRELUDE}d="$base/orders/{order.id}"\n{done}[ -f "$d/env" ] || exit {NOTHING_THERE}\n. "$d/env"\n'
        f'exec "$python" -P -m assay.hosts.remote.there.{module} "$d" {rest}'
    )


def _why(said: Said) -> str:
    return in_words(last_line(said.err) or f"exit code {said.code}")


def _tell(watcher: Watcher, state: str, what: str) -> None:
    watcher.progress(Progress.model_validate({"state": state, "what": f"{what}."}))
