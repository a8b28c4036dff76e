"""Groups of verbs (``assay contention``, ``assay energy`` …), each verb imported only when it is called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from assay.core.errors import BadInput, suggest_nearest

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
            near = suggest_nearest(args[0], self.verbs)
            raise BadInput(f"There is no command {args[0]!r}.{near} `{ctx.command_path} --help` lists them.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their sentences, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in sorted(self.verbs.items())])


CONTENTION_VERBS: Verbs = {
    "matrix": ("assay.cli.contention_matrix:command", "Which load slows which workload, and what isolation cures."),
    "run": ("assay.cli.contention_run:command", "Alone, side by side, isolated, alone again: times and picks."),
    "variance": ("assay.cli.contention_variance:command", "Hold two groups of results against each other."),
}


@click.group(
    "contention", cls=LazyGroup, verbs=CONTENTION_VERBS, context_settings={"help_option_names": ["-h", "--help"]}
)
def contention() -> None:
    """Does running side by side change what I measure, and what my tuner picks?"""


ENERGY_VERBS: Verbs = {
    "check": ("assay.cli.energy_check:command", "Look at the GPUs, and write a configuration that fits them."),
    "compare": ("assay.cli.energy_compare:command", "Tokens per second against joules: models, batches, placements."),
    "run": ("assay.cli.energy_run:command", "Measure a model or a server: joules, watts and time per token."),
}


@click.group("energy", cls=LazyGroup, verbs=ENERGY_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def energy() -> None:
    """What does a token cost in joules?"""


GITHUB_VERBS: Verbs = {
    "comment": ("assay.cli.github:comment_results", "Tell results under a pull request, in one comment."),
    "measure": ("assay.cli.github:measure_commit", "Measure one commit on one kind of rented GPU."),
    "pull-request": ("assay.cli.github:propose_pull_request", "Propose new thresholds as a pull request."),
    "request": ("assay.cli.github:request_measurement", "Decide whether a comment, a label or inputs may rent GPUs."),
}


@click.group("github", cls=LazyGroup, verbs=GITHUB_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def github() -> None:
    """Benchmarks asked for in comments, and thresholds proposed in pull requests."""


HISTORY_VERBS: Verbs = {
    "export": ("assay.cli.history:export_history", "Write every point to a file, as CSV or JSON."),
    "import": ("assay.cli.history:import_history", "Put runs that are there into the history, or rebuild it."),
    "list": ("assay.cli.history:list_history", "Show the runs, the newest first, or the series."),
    "plot": ("assay.cli.history:plot_series", "Draw a series with its intervals."),
    "regressions": ("assay.cli.history:find_regressions", "Find since when something is slower, or faster."),
    "show": ("assay.cli.history:show_history", "Show what a run left, or the points of a series."),
}


@click.group("history", cls=LazyGroup, verbs=HISTORY_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def history() -> None:
    """What was measured before, and has anything changed?"""


POWER_VERBS: Verbs = {
    "budget": ("assay.cli.power_analysis:plan_budget", "Which caps give the most work under so many watts."),
    "characterize": ("assay.cli.power_characterize:command", "Kernels, watts, clocks and heat, case by case."),
    "sweep": ("assay.cli.power_sweep:command", "Step limits, clocks or load, and find where energy is best spent."),
    "variability": ("assay.cli.power_analysis:analyse_variability", "Which GPUs are slow, hot or hungry."),
}


@click.group("power", cls=LazyGroup, verbs=POWER_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def power() -> None:
    """How do watts shape performance, and how unequal are my GPUs?"""


SCALING_VERBS: Verbs = {
    "analyse": ("assay.cli.scaling_analyse:command", "Figures and a report of results that are there; a gate."),
    "analyze": ("assay.cli.scaling_analyse:command", "The same as analyse."),
    "predict": ("assay.cli.scaling_predict:command", "What GPUs that are not here would take."),
    "run": ("assay.cli.scaling_run:command", "Measure one rank, then more: speedup, efficiency, communication."),
    "test": ("assay.cli.scaling_test:command", "Is the attention exact here, over ranks too?"),
}


@click.group("scaling", cls=LazyGroup, verbs=SCALING_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def scaling() -> None:
    """How does it scale over GPUs, and what does communication cost?"""


THRESHOLD_VERBS: Verbs = {
    "apply": (
        "assay.cli.threshold_results:apply_thresholds",
        "Decide from results that are there, and write the configuration.",
    ),
    "parse": ("assay.cli.threshold_results:parse_older_output", "Read the older bench's lines."),
    "run": ("assay.cli.threshold_run:command", "Measure both paths over a grid, and decide."),
}


@click.group(
    "threshold", cls=LazyGroup, verbs=THRESHOLD_VERBS, context_settings={"help_option_names": ["-h", "--help"]}
)
def threshold() -> None:
    """From which size on is the fast path really faster, here?"""
