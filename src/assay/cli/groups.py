"""Groups of verbs (``assay contention``, ``assay energy`` …), each verb imported only when it is called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from assay.core.errors import BadInput, suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


Verbs = dict[str, tuple[str, str]]
"""Each verb by its name: where it lives, and what it does in a sentence."""


HYPHEN = "\ue000"
"""Stands for a hyphen while help is wrapped, so that no name is broken across lines."""


class OlderFormatter(click.HelpFormatter):
    """Wraps help at spaces only: `--min-effect` stays whole."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names and their descriptions in two columns."""
        super().write_dl([(name, text.replace("-", HYPHEN)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        """Return everything written."""
        return super().getvalue().replace(HYPHEN, "-")


class OlderHelpContext(click.Context):
    """The context of every group and verb."""

    formatter_class = OlderFormatter


class LazyGroup(click.Group):
    """A group that knows its verbs by name and imports one only when it is called."""

    context_class = OlderHelpContext

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
    "matrix": (
        "assay.cli.contention_matrix:command",
        "Measure which load slows which workload, and what isolation prevents.",
    ),
    "run": ("assay.cli.contention_run:command", "Time and tune alone, concurrently, isolated, and alone again."),
    "variance": ("assay.cli.contention_variance:command", "Compare times and variance of two groups of results."),
}


@click.group(
    "contention", cls=LazyGroup, verbs=CONTENTION_VERBS, context_settings={"help_option_names": ["-h", "--help"]}
)
def contention() -> None:
    """Measure how contention changes timings and tuner picks."""


ENERGY_VERBS: Verbs = {
    "check": ("assay.cli.energy_check:command", "Check the GPUs and write a configuration that fits them."),
    "compare": ("assay.cli.energy_compare:command", "Compare tokens/s and J/token of models, batches and placements."),
    "run": ("assay.cli.energy_run:command", "Measure energy, power and time per token of a model or server."),
}


@click.group("energy", cls=LazyGroup, verbs=ENERGY_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def energy() -> None:
    """Measure the energy of LLM inference, in joules per token."""


GITHUB_VERBS: Verbs = {
    "comment": ("assay.cli.github:comment_results", "Post results as one comment on a pull request."),
    "measure": ("assay.cli.github:measure_commit", "Measure one commit on one kind of rented GPU."),
    "pull-request": ("assay.cli.github:propose_pull_request", "Propose new thresholds as a pull request."),
    "request": ("assay.cli.github:request_measurement", "Decide whether a workflow event may rent GPUs."),
}


@click.group("github", cls=LazyGroup, verbs=GITHUB_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def github() -> None:
    """Run benchmarks requested on GitHub and propose thresholds."""


HISTORY_VERBS: Verbs = {
    "export": ("assay.cli.history:export_history", "Export all points as CSV or JSON."),
    "import": ("assay.cli.history:import_history", "Import existing runs, or rebuild the history."),
    "list": ("assay.cli.history:list_history", "List runs (newest first) or series."),
    "plot": ("assay.cli.history:plot_series", "Plot a series with its confidence intervals."),
    "regressions": (
        "assay.cli.history:find_regressions",
        "Find change points: what became slower or faster, and when.",
    ),
    "show": ("assay.cli.history:show_history", "Show the results of a run or the points of a series."),
}


@click.group("history", cls=LazyGroup, verbs=HISTORY_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def history() -> None:
    """Browse the results of earlier runs and find regressions."""


POWER_VERBS: Verbs = {
    "budget": (
        "assay.cli.power_analysis:plan_budget",
        "Find the power limits with the most throughput under a budget.",
    ),
    "characterize": ("assay.cli.power_characterize:command", "Sample power, clocks and temperature while kernels run."),
    "sweep": ("assay.cli.power_sweep:command", "Sweep power limits, clocks or load for energy efficiency."),
    "variability": ("assay.cli.power_analysis:analyse_variability", "Find GPUs that are slow, hot or power-hungry."),
}


@click.group("power", cls=LazyGroup, verbs=POWER_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def power() -> None:
    """Measure power, energy efficiency and variability across GPUs."""


SCALING_VERBS: Verbs = {
    "analyse": ("assay.cli.scaling_analyse:command", "Report on existing results, and apply a gate."),
    "analyze": ("assay.cli.scaling_analyse:command", "The same as analyse."),
    "predict": ("assay.cli.scaling_predict:command", "Predict time on more GPUs than this machine has."),
    "run": ("assay.cli.scaling_run:command", "Measure speedup, efficiency and communication over ranks."),
    "test": ("assay.cli.scaling_test:command", "Check that ring attention is exact, also across ranks."),
}


@click.group("scaling", cls=LazyGroup, verbs=SCALING_VERBS, context_settings={"help_option_names": ["-h", "--help"]})
def scaling() -> None:
    """Measure scaling over GPUs and the cost of communication."""


THRESHOLD_VERBS: Verbs = {
    "apply": (
        "assay.cli.threshold_results:apply_thresholds",
        "Decide from existing results and write the configuration.",
    ),
    "parse": ("assay.cli.threshold_results:parse_older_output", "Convert the output of an older benchmark to JSON."),
    "run": ("assay.cli.threshold_run:command", "Measure both paths over a grid of sizes and decide."),
}


@click.group(
    "threshold", cls=LazyGroup, verbs=THRESHOLD_VERBS, context_settings={"help_option_names": ["-h", "--help"]}
)
def threshold() -> None:
    """Find the problem size from which a fast path is faster."""
