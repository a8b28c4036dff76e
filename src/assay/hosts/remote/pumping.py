"""A program with all of its streams served at once, by one thread that sleeps in between."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import IO

CHUNK = 1 << 16
ERRORS_KEPT = 8000


class TimeIsOver(Exception):
    """The program took too long and was killed."""


class Pump:
    """One program: what is fed to it, and who is told what it prints."""

    def __init__(
        self,
        command: list[str],
        *,
        after: bytes = b"",
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Set it up; its output counts ``after`` these bytes have come, as a login may print before it."""
        self._environment = environment
        self._command = command
        self._after = after
        self._before = b""
        self._out, self._err = out, err
        self._kept: dict[str, list[bytes]] = {"out": [], "err": []}
        self.errors = b""

    @property
    def kept_out(self) -> bytes:
        """What it printed, where nobody was told."""
        return b"".join(self._kept["out"])

    @property
    def kept_err(self) -> bytes:
        """Likewise of its errors."""
        return b"".join(self._kept["err"])

    def run(self, feed: Iterable[bytes], within_s: float | None) -> int:
        """Run it to its end; return its exit code. Whatever comes in between ends it.

        Raises:
            TimeIsOver: It took longer than ``within_s``.
            OSError: It could not be started.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # Ctrl-C is ours to hear
        )
        try:
            self._serve(process, iter(feed), deadline)
            return process.wait(None if deadline is None else max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeIsOver from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _serve(self, process: subprocess.Popen[bytes], feed: Iterator[bytes], deadline: float | None) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("all three are pipes")
        feeder = _Feeder(process.stdin, feed)
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ, self._print)
            waiting.register(process.stderr, selectors.EVENT_READ, self._complain)
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
            while waiting.get_map():
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeIsOver
                for key, _ in waiting.select(left_s):
                    if key.data is None:
                        if not feeder.push():
                            waiting.unregister(process.stdin)
                    elif data := os.read(key.fd, CHUNK):
                        key.data(data)
                    else:
                        waiting.unregister(key.fileobj)

    def _print(self, data: bytes) -> None:
        if self._after:
            self._before += data
            _, separator, data = self._before.partition(self._after)
            if not separator:
                return
            self._after = self._before = b""
        self._pass_on("out", self._out, data)

    def _complain(self, data: bytes) -> None:
        self.errors = (self.errors + data)[-ERRORS_KEPT:]
        self._pass_on("err", self._err, data)

    def _pass_on(self, name: str, told: Callable[[bytes], None] | None, data: bytes) -> None:
        if data and told is not None:
            told(data)
        elif data:
            self._kept[name].append(data)


class _Feeder:
    """Writes piece after piece to a pipe as it takes them; closes it after the last."""

    def __init__(self, pipe: IO[bytes], feed: Iterator[bytes]) -> None:
        self._pipe = pipe
        self._feed = feed
        self._left = memoryview(b"")

    def push(self) -> bool:
        """Write as much as goes; return whether there is more to come."""
        try:
            while True:
                if not self._left:
                    piece = next(self._feed, None)
                    if piece is None:
                        self._pipe.close()
                        return False
                    self._left = memoryview(piece)
                    continue
                self._left = self._left[os.write(self._pipe.fileno(), self._left) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # it reads no further; its exit code says why
            with contextlib.suppress(OSError):
                self._pipe.close()
            return False
