"""A stand-in for Helion 1.0: the part of its interface that Assay uses, as an installed distribution in a folder.

Its search tries three configurations, writes Helion's log and reports through Helion's hook; its kernels are the
functions that they decorate, called as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

INIT = """
import dataclasses
from pathlib import Path

from helion import exc, language
from helion.autotuner import metrics


@dataclasses.dataclass
class Settings:
    autotune_effort: str = "full"
    {budget}


class Bound:
    def __init__(self, function, settings):
        self.function, self.settings = function, settings
        self.config_spec = self

    def default_config(self):
        return {{"block_sizes": [32], "num_warps": 4}}

    def set_config(self, config):
        if not set(dict(config)) <= {{"block_sizes", "num_warps"}}:
            raise exc.InvalidConfig(f"unexpected settings {{dict(config)}}")

    def autotune(self, args, force=False):
        assert force, "what another search left behind must not be used"
        lines = ["timestamp_s,config_index,generation,status,perf_ms,compile_time_s,config"]
        for number, (warps, perf_ms) in enumerate([(4, 0.020), (8, 0.015), (16, 0.030)]):
            config = f'"Config(block_sizes=[32], num_warps={{warps}})"'
            lines.append(f"{{number}}.5,{{number}},0,ok,{{perf_ms}},0.1,{{config}}")
        Path(self.settings["autotune_log"]).with_suffix(".csv").write_text("\\n".join(lines) + "\\n")
        metrics.report(num_configs_tested=4, num_compile_failures=1, autotune_time=45.0, best_perf_ms=0.015)
        return {{"block_sizes": [32], "num_warps": 8}}


class Kernel:
    def __init__(self, function, settings):
        self.fn, self.settings = function, settings

    def bind(self, args):
        return Bound(self.fn, self.settings)


def kernel(function=None, **settings):
    if function is None:
        return lambda decorated: Kernel(decorated, settings)
    return Kernel(function, settings)
"""

METRICS = """
HOOKS = []


class Metrics:
    def __init__(self, values):
        self.values = values

    def to_dict(self):
        return self.values


def register_post_autotune_hook(hook):
    HOOKS.append(hook)


def remove_post_autotune_hook(hook):
    HOOKS.remove(hook)


def report(**values):
    for hook in list(HOOKS):
        hook(Metrics(values))
"""


def install_stub_helion(folder: Path, version: str = "1.0.0") -> Path:
    """Write the stand-in as a distribution of a version, and return the folder that goes on the path.

    From 1.1 on its settings have a budget, as Helion's do.
    """
    package = folder / "helion"
    (package / "autotuner").mkdir(parents=True)
    budget = "autotune_budget_seconds: int | None = None" if version >= "1.1" else ""
    (package / "__init__.py").write_text(INIT.format(budget=budget))
    (package / "exc.py").write_text("class InvalidConfig(Exception):\n    pass\n")
    (package / "language.py").write_text("tile = range\n")
    (package / "autotuner" / "__init__.py").write_text("")
    (package / "autotuner" / "metrics.py").write_text(METRICS)
    info = folder / f"helion-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: helion\nVersion: {version}\n")
    return folder
