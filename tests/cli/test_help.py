"""What `--help` shows: every verb's own options first, in groups, on one screen, and no name broken."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click
import pytest

from assay.cli.flags import MONITORING, REMOTE, RENTAL, SLURM
from assay.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN_LINES = 60
"""A verb's own options end within so many lines."""


def all_verbs(group: click.Group, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of every verb, at any depth."""
    context = group.context_class(group, info_name=group.name if parent else "assay", parent=parent, terminal_width=80)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from all_verbs(command, context)
        else:
            yield command.context_class(command, info_name=name, parent=context, terminal_width=80)


VERBS = {context.command_path: context for context in all_verbs(cli)}
HELP = {path: context.get_help() for path, context in VERBS.items()}


@pytest.mark.parametrize("path", VERBS)
def test_a_verbs_own_options_come_first_and_fit_on_a_screen(path: str) -> None:
    lines = HELP[path].splitlines()
    titles = [line.rstrip(":") for line in lines if re.fullmatch(r"[A-Z][\w, ]+:", line)]
    at_the_end = (MONITORING, REMOTE, SLURM, RENTAL)
    last = [title for title in titles if title in at_the_end]
    assert titles[len(titles) - len(last) :] == last == sorted(last, key=at_the_end.index)
    own = lines.index(f"{last[0]}:") if last else len(lines)
    assert own <= OWN_LINES
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("path", VERBS)
def test_every_shown_option_says_what_it_does_and_no_name_is_broken(path: str) -> None:
    text = HELP[path]
    assert not re.search(r"[\w]-\n", text)
    for option in VERBS[path].command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, option.opts
            assert max(option.opts, key=len).lstrip("-") in text


def test_what_must_be_given_is_marked() -> None:
    assert "  --watts W" in HELP["assay power budget"]
    assert re.search(r"--watts W .*\[required\]", " ".join(HELP["assay power budget"].split()))
    assert "[required]" not in HELP["assay run"]
    assert "compare [OPTIONS] [RUN]..." in HELP["assay energy compare"]


def test_spellings_of_the_older_tools_are_taken_but_not_shown() -> None:
    shown = HELP["assay contention run"] + HELP["assay threshold run"] + HELP["assay scaling run"]
    for name in ("--kernel", "--gpu ", "--provider", "--no-flash-attention", "--no-save"):
        assert name not in shown
    names = {name for path in VERBS for option in VERBS[path].command.params for name in option.opts}
    assert {"--kernel", "--gpu", "--provider", "--no-flash-attention", "--no-save", "--results-dir"} <= names


def test_the_same_option_has_the_same_meaning_everywhere() -> None:
    shared = {"minimum_effect", "timeout_s", "retakes", "as_json", "ship", "history", "on_interference", "unsure"}
    texts: dict[str, set[str | None]] = {name: set() for name in shared}
    for path, context in VERBS.items():
        for option in context.command.params:
            if isinstance(option, click.Option) and option.name in shared and path not in SPECIAL.get(option.name, ()):
                texts[option.name].add(option.help and option.help.partition("  [")[0])
    assert all(len(said) == 1 for said in texts.values()), texts
    assert texts["minimum_effect"] == {"Ignore effects smaller than this."}


SPECIAL = {
    "timeout_s": {"assay time", "assay trace"},
    "as_json": {"assay monitor", "assay history export", "assay github request"},
}
"""Verbs in which an option means something of its own."""
