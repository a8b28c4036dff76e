"""Any command as a tuner: it writes its result to a file that we name, in the JSON format of the older analyser.

``all_benchmark_times`` may be a list of milliseconds, a list of ``{"config": …, "time_ms": …}``, or an object from
configurations to milliseconds.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.core.results import TriedConfig
from assay.tuners.base import TuningResult
from assay.workloads.command import SCRATCH_VARIABLE, describe_exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params
    from assay.tuners.base import TuningJob


OUTPUT_KEYS = (
    "kernel_name",
    "best_config",
    "best_time_ms",
    "all_benchmark_times",
    "num_configs_tested",
    "autotune_duration_seconds",
)
NO_TIME = "it has no time"


def parse_output(text: str) -> TuningResult:
    """Parse the output of a tuner.

    Raises:
        TrialFailed: It does not have the expected form; the message says what is wrong.
    """
    try:
        output = json.loads(text)
    except ValueError as error:
        raise TrialFailed(f"what the tuner wrote is not JSON: {error}") from None
    if not isinstance(output, dict):
        raise TrialFailed(f"what the tuner wrote is no object, but {type(output).__name__}")
    missing = [name for name in OUTPUT_KEYS if name not in output]
    if missing:
        raise TrialFailed(f"what the tuner wrote lacks {', '.join(missing)}")
    tried = tuple(_parse_tried(output["all_benchmark_times"]))
    notes = [f"kernel {output['kernel_name']}"]
    if output["num_configs_tested"] != len(tried):
        notes.append(f"it says that it tested {output['num_configs_tested']} configurations, and lists {len(tried)}")
    tuning_s = _number(output["autotune_duration_seconds"], "autotune_duration_seconds")
    if output["best_config"] is None:
        none_chosen = "it chose no configuration"
        return TuningResult(None, tried=tried, tuning_s=tuning_s, reason=none_chosen, notes=tuple(notes))
    best_us = 1000 * _number(output["best_time_ms"], "best_time_ms")
    return TuningResult(config_params(output["best_config"]), best_us, tried, tuning_s=tuning_s, notes=tuple(notes))


def config_params(config: Any) -> Params:
    """Return a configuration as plain values: nested values become JSON text, values without a name get one."""
    if isinstance(config, str):
        try:
            read = json.loads(config)
        except ValueError:
            read = None
        config = read if isinstance(read, dict) else {"config": config}
    if not isinstance(config, dict):
        config = {"config": config}
    return {
        str(name): value if value is None or isinstance(value, str | int | float) else json.dumps(value)
        for name, value in config.items()
    }


def _number(value: Any, name: str) -> float:
    if not _is_time(value):
        raise TrialFailed(f"what the tuner wrote has a {name} of {value!r}, which is no time")
    return float(value)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _parse_tried(times: Any) -> Iterator[TriedConfig]:
    if isinstance(times, dict):
        yield from (_tried_config(config_params(config), time_ms) for config, time_ms in times.items())
    elif isinstance(times, list):
        for index, entry in enumerate(times):
            if isinstance(entry, dict):
                yield _tried_config(config_params(entry.get("config", {"number": index})), entry.get("time_ms"))
            else:
                yield _tried_config({"number": index}, entry)
    else:
        raise TrialFailed(f"what the tuner wrote has all_benchmark_times of type {type(times).__name__}")


def _tried_config(config: Params, time_ms: Any) -> TriedConfig:
    if not _is_time(time_ms):
        return TriedConfig(config=config, reason=NO_TIME)
    return TriedConfig(config=config, time_us=1000 * float(time_ms))


OUTPUT_PLACEHOLDER = "{output}"
OUTPUT_VARIABLE = "ASSAY_OUTPUT"
"""Environment variable with the file's path, for a command that cannot take it as an argument."""


def tune(job: TuningJob) -> TuningResult:
    """Run the command to its end and read its output; it does not outlive this process, however that ends."""
    if job.tuner.command is None:
        raise BadInput("the tuner is to be a command, and none is given")
    with tempfile.TemporaryDirectory(prefix="tuner-", dir=os.environ.get(SCRATCH_VARIABLE)) as folder:
        output = Path(folder) / "found.json"
        argv = [argument.replace(OUTPUT_PLACEHOLDER, str(output)) for argument in job.tuner.command.argv]
        status = _run_command(argv, output)
        if status != 0:
            raise TrialFailed(f"the tuner's command {describe_exit(status)}")
        if not output.exists():
            raise TrialFailed(f"the tuner's command wrote no file to {OUTPUT_PLACEHOLDER} or ${OUTPUT_VARIABLE}")
        return parse_output(output.read_text(encoding="utf-8", errors="replace"))


def _run_command(argv: list[str], output: Path) -> int:
    """Run a command, with output to our own stdout and stderr; return its exit status."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, OUTPUT_VARIABLE: str(output)})
    except OSError as error:
        raise MachineCannot(f"the tuner's command {argv[0]!r} cannot be started: {error.strerror}") from None
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # interrupted, for example by a timeout
            process.kill()
            process.wait()
