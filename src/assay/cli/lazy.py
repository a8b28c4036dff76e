"""Groups of verbs that are imported only when they are called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from assay.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

Verbs = dict[str, tuple[str, str]]
"""Each verb by its name: where it lives, and what it does in a sentence."""


class LazyGroup(click.Group):
    """A group that knows its verbs by name and imports one only when it is called."""

    def __init__(self, *args: Any, verbs: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every verb."""
        return sorted(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, importing it."""
        if cmd_name not in self.verbs:
            return None
        module, _, attribute = self.verbs[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that is meant, or say which are near."""
        if args and args[0] not in self.verbs and not args[0].startswith("-"):
            near = nearest(args[0], self.verbs)
            raise BadInput(f"There is no command {args[0]!r}.{near} `{ctx.command_path} --help` lists them.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their sentences, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in sorted(self.verbs.items())])
