"""A line by the system's own ``ssh``, with the user's own configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from assay.hosts.remote.line import Said


class SshLine:
    """A machine that can be logged in to without a question; one connection serves all that is done there."""

    def __init__(
        self,
        destination: str,
        *,
        port: int | None = None,
        identity: Path | None = None,
        known_hosts: Path | None = None,
        options: tuple[str, ...] = (),
        where: str | None = None,
    ) -> None:
        """Say where to; nothing is done yet.

        Args:
            destination: As ssh takes it: ``gpu1``, ``user@host``.
            port: Null: as the configuration has it.
            identity: The only key that is used, for machines that were rented with it; null: the user's own.
            known_hosts: Keeps the host key that a rented machine shows first; null: the user's own file.
            options: Further words for ssh, such as ``-F FILE``.
            where: For people; null: the destination.
        """
        raise NotImplementedError

    def do(
        self,
        script: str,
        *,
        feed: Iterable[bytes] = (),
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        within_s: float | None = None,
    ) -> Said:
        """Run a script of ``sh`` there to its end."""
        raise NotImplementedError

    def close(self) -> None:
        """Let the connection go; the next `do` makes another."""
        raise NotImplementedError
