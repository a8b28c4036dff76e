"""Any command as a workload: wall time, resource usage, and the numbers it prints or writes."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.workloads.base import PreparedWorkload

if TYPE_CHECKING:
    from assay.core.values import Command, Metric

RESULT_VARIABLE = "ASSAY_RESULT"
SCRATCH_VARIABLE = "ASSAY_SCRATCH"
"""Environment variable with the worker's folder for temporary files, removed however the worker ends."""
_TAIL_CHARACTERS = 4000


def read_metric(text: str) -> tuple[str, str]:
    """Parse a name and a pattern from ``NAME=REGEX``; the pattern needs a group around the number."""
    name, equals, pattern = text.partition("=")
    if not equals or not name.strip():
        raise BadInput(f"A metric is written NAME=REGEX, not {text!r}.")
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise BadInput(f"The pattern of metric {name!r} is not a regular expression: {error}.") from None
    if groups < 1:
        raise BadInput(f"The pattern of metric {name!r} needs a group around the number: {name}=time ([0-9.]+) ms.")
    return name.strip(), pattern


def prepare_command(command: Command) -> PreparedWorkload:
    """Return a call that runs the command once and reports its resource usage and the numbers it prints."""
    return PreparedWorkload(call=partial(run_command, command), reports_extras=True)


def run_command(command: Command) -> dict[str, float]:
    """Run the command to its end; return its time, resource usage and metrics, or raise how it ended."""
    with tempfile.TemporaryDirectory(prefix="command-", dir=os.environ.get(SCRATCH_VARIABLE)) as folder:
        result, output = Path(folder) / "result.json", Path(folder) / "stdout"
        with output.open("wb") as out:
            extras, status = _run_and_wait(command, out.fileno(), result)
        printed = output.read_text(encoding="utf-8", errors="replace")
        try:
            return extras | _collect_metrics(command, status, printed, result)
        except TrialFailed:
            print(printed[-_TAIL_CHARACTERS:], file=sys.stderr)  # noqa: T201 - into the log of the worker
            raise


def _collect_metrics(command: Command, status: int, printed: str, result: Path) -> dict[str, float]:
    """Return the numbers that a command printed and wrote; raise if it failed."""
    if status != 0:
        raise TrialFailed(f"the command {describe_exit(status)}")
    return {metric.name: find_metric(metric, printed) for metric in command.metrics} | _read_result_file(result)


def _run_and_wait(command: Command, out: int, result: Path) -> tuple[dict[str, float], int]:
    """Run the command; return its resource usage and its exit code.

    Linux counts the memory of the parent into a process's peak, so a peak that is no higher than ours is not the
    command's and is left out.
    """
    environment = {**os.environ, RESULT_VARIABLE: str(result)}
    begin_ns = time.perf_counter_ns()
    try:
        process = subprocess.Popen(command.argv, stdin=subprocess.DEVNULL, stdout=out, env=environment)
    except OSError as error:
        raise MachineCannot(f"the command {command.argv[0]!r} cannot be started: {error.strerror}") from None
    _, status, usage = os.wait4(process.pid, 0)
    call_us = (time.perf_counter_ns() - begin_ns) / 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    extras = {"call_us": call_us, "cpu_user_s": usage.ru_utime, "cpu_system_s": usage.ru_stime}
    if usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        extras["max_rss_mib"] = usage.ru_maxrss / 1024
    return extras, process.returncode


def describe_exit(status: int) -> str:
    """Return how a command ended, as a clause."""
    if status < 0:
        signal_names = {number.value: number.name for number in signal.Signals}
        return f"was killed by {signal_names.get(-status, f'signal {-status}')}"
    return f"exited with {status}"


def find_metric(metric: Metric, printed: str) -> float:
    """Return the number in the pattern's last match."""
    matches = list(re.finditer(metric.pattern, printed, re.MULTILINE))
    if not matches:
        raise TrialFailed(f"metric {metric.name!r}: {metric.pattern!r} matches nothing on standard output")
    try:
        number = float(matches[-1][1])
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise TrialFailed(f"metric {metric.name!r}: {matches[-1][1]!r} is not a number")
    return number


def _read_result_file(result: Path) -> dict[str, float]:
    """Return the numbers the command wrote to its result file; none when it wrote no file."""
    if not result.exists():
        return {}
    try:
        content = json.loads(result.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrialFailed(f"what the command wrote to ${RESULT_VARIABLE} is not JSON: {error}") from None

    def is_finite(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max

    if not isinstance(content, dict) or not all(map(is_finite, content.values())):
        raise TrialFailed(f"what the command wrote to ${RESULT_VARIABLE} is not an object of names and numbers")
    return {str(name): float(value) for name, value in content.items()}
