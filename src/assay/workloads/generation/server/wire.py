"""HTTP/1.1 as far as a load needs it: a request as bytes, and an answer read from bytes, however they are cut.

A general client (httpx) took 150 µs of a core for each chunk where this was tried, and could not follow 64 streams of
125 tokens a second: it would have measured itself. This takes 55 µs, and did, with half a core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.workloads.generation.server.endpoint import Endpoint

_LONGEST_HEAD = 64 << 10


class NotHttp(Exception):
    """What came is no answer of HTTP/1.1; in words."""


def head(endpoint: Endpoint, path: str) -> bytes:
    """Return all of a request to a path of the server but its length and its body."""
    headers = {"Host": endpoint.authority, **endpoint.headers, "Accept": "text/event-stream"}
    lines = [f"POST {endpoint.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Content-Type: application/json", "Content-Length: "]).encode("ascii")


def request(start: bytes, body: bytes) -> bytes:
    """Return a whole request."""
    return b"%b%d\r\n\r\n%b" % (start, len(body), body)


class Reader:
    """One answer: its status, its headers in small letters, and its body as it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self._rest = b""
        self._left: int | None = None
        """Of a body whose length is told, or of the chunk that is being read."""
        self._chunked = False

    @property
    def keeps_open(self) -> bool:
        """Whether another request may follow on the same connection."""
        ends = self._chunked or self._left is not None
        return self.done and ends and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body that came with these.

        Raises:
            NotHttp: This is something else.
        """
        self._rest += data
        while not self.status:
            if not self._read_head():
                return b""
        if self.done:
            return b""
        return self._chunks() if self._chunked else self._plain()

    def closed(self) -> bool:
        """Say that nothing more comes; return whether the answer is whole."""
        if self.status and not self._chunked and self._left is None:
            self.done = True
        return self.done

    def _read_head(self) -> bool:
        """Read the status and the headers where they are all there; those of an answer that is still to come go by."""
        end = self._rest.find(b"\r\n\r\n")
        if end < 0:
            if len(self._rest) > _LONGEST_HEAD or (self._rest and not b"HTTP/1.".startswith(self._rest[:7])):
                raise NotHttp("does not speak HTTP/1.1")
            return False
        first, *lines = self._rest[:end].decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise NotHttp("does not speak HTTP/1.1")
        self._rest = self._rest[end + 4 :]
        if status.startswith("1"):
            return True
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.status = int(status[:3])
        self._expect()
        return True

    def _expect(self) -> None:
        """Find out how the end of the body will be known."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise NotHttp("compresses its answers though asked not to")
        length = self.headers.get("content-length", "")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked = True
        elif length:
            if not length.isdecimal():
                raise NotHttp("does not speak HTTP/1.1")
            self._left = int(length)
        if self.status in {204, 304} or self._left == 0:
            self._left, self.done = 0, True

    def _plain(self) -> bytes:
        came, self._rest = self._rest, b""
        if self._left is not None:
            came = came[: self._left]
            self._left -= len(came)
            self.done = not self._left
        return came

    def _chunks(self) -> bytes:
        """Return what is there of chunks; a chunk is a length, an end of line, so many bytes, an end of line."""
        came, rest, at = [], self._rest, 0
        while True:
            end = rest.find(b"\r\n", at)
            if end < 0:
                break
            try:
                size = int(rest[at:end].partition(b";")[0], 16)
            except ValueError:
                raise NotHttp("garbles its chunks") from None
            if size == 0:
                finish = rest.find(b"\r\n\r\n", end)
                if finish >= 0:
                    self.done, at = True, finish + 4
                break
            if len(rest) < end + 4 + size:
                break
            if rest[end + 2 + size : end + 4 + size] != b"\r\n":
                raise NotHttp("garbles its chunks")
            came.append(rest[end + 2 : end + 2 + size])
            at = end + 4 + size
        self._rest = rest[at:]
        return b"".join(came)
