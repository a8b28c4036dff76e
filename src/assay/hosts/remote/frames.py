"""What comes over the line from `there.follow`, put together again; and paths there as paths here."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.hosts.remote.parcel import start_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.base import Order, Watcher


WAY_ON = re.compile(rb"[^\n]*Stopped by SIG\w+;[^\n]*assay resume [^\n]*\n")
"""How the Assay there ends when it is stopped: it says how to go on there."""

OURS = frozenset({"late", "unheard", "asked"})
"""Why it was stopped, where its keeper did that: then how to go on is said here, and rightly."""


def runs_there(order_id: str) -> str:
    """Return where runs are kept there, from the working folder: a name that stands nowhere else in what is printed."""
    return f"runs-{order_id}"


class Frames:
    """Takes what comes, piece by piece, over one line or several after one another; knows how far it has come."""

    def __init__(self, order: Order, watcher: Watcher) -> None:
        self._order = order
        self._buffer = b""
        self._lines = {"o": Lines(watcher.out), "e": Lines(watcher.err)}
        self.at = {"o": 0, "e": 0}
        self.begun = False
        self.ended: dict[str, Any] | None = None

    def take(self, data: bytes) -> None:
        """Take a piece."""
        self._buffer += data
        while True:
            head, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                return
            size = int(head[1:])
            if len(rest) < size:
                return
            self._buffer = rest[size:]
            self._frame(head[:1].decode(), rest[:size])

    def cut(self) -> None:
        """Forget a frame of which only a part came: it comes again, as a whole."""
        self._buffer = b""

    def flush(self) -> None:
        """Hand on what ended without a line break, and how to go on, unless that is said here."""
        if self.ended is not None and self.ended.get("why") in OURS:
            self._lines["e"].forget_way_on()
        for lines in self._lines.values():
            lines.flush()

    def _frame(self, kind: str, data: bytes) -> None:
        if kind == "f":
            self.begun = True
            for lines in self._lines.values():
                lines.pairs = pairs(self._order, os.fsdecode(data))
        elif kind == "x":
            self.ended = json.loads(data)
        elif kind in self._lines:
            self.at[kind] += len(data)
            self._lines[kind].take(data)


class Lines:
    """Hands on whole lines, with paths there turned into paths here."""

    def __init__(self, told: Callable[[bytes], None]) -> None:
        self._told = told
        self._kept = b""
        self.pairs: tuple[tuple[bytes, bytes], ...] = ()

    def take(self, data: bytes) -> None:
        """Take a piece of any length."""
        whole, newline, rest = (self._kept + data).rpartition(b"\n")
        whole += newline
        last = whole.rfind(b"\n", 0, -1) + 1
        at = last if not rest and WAY_ON.fullmatch(whole, last) else len(whole)
        self._kept = whole[at:] + rest
        if at:
            self._told(self._translated(whole[:at]))

    def forget_way_on(self) -> None:
        """Do not hand on the last line, if it says how to go on there."""
        if WAY_ON.fullmatch(self._kept):
            self._kept = b""

    def flush(self) -> None:
        """Hand on the rest."""
        if self._kept:
            self._told(self._translated(self._kept))
        self._kept = b""

    def _translated(self, data: bytes) -> bytes:
        for there, here in self.pairs:
            data = data.replace(there, here)
        return data


def pairs(order: Order, folder: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return what stands there for what here: the folder of runs, whole and from the working folder; that itself."""
    start, runs = f"{folder}/{start_of(order.files)}", runs_there(order.id)
    here = Path(order.output_dir)
    short = here.relative_to(order.cwd) if here.is_relative_to(order.cwd) and order.cwd != "/" else here
    prefix = b"" if str(short) == "." else os.fsencode(short) + b"/"
    return (
        (os.fsencode(f"{start}/{runs}"), os.fsencode(here)),
        (os.fsencode(f"{runs}/"), prefix),
        (os.fsencode(runs), os.fsencode(short)),
        (os.fsencode(start), os.fsencode(order.cwd)),
    )
