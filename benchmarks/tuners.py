"""What do auto-tuners choose in company? Assay's pick, ``triton.autotune`` and Helion, quiet and beside two aggressors.

    python benchmarks/tuners.py run [--to FOLDER] [--tries N]   measure on this GPU, keep everything, print the table
    python benchmarks/tuners.py verify                           compute the table again from what was kept

Every try is a process of its own that is started, times the default configuration, and tunes; tries of all tuners and
conditions take turns in random order. At the end every configuration that was chosen is timed in quiet, in turns, in
three processes. What there is no time for is left for the next time: what is in the results is not tried again, and
each visit's choices are timed again within that visit.
"""

from __future__ import annotations

import faulthandler
import json
import lzma
import random
import sys
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.core.guardian import Guardian
from assay.core.values import HOST, Adaptive, Role, Subject, Trial, Tuner
from assay.experiments.reporting import TIME_QUANTITIES
from assay.launch.local import LocalStarter
from assay.launch.trial import Launcher
from assay.machine.detect import detect
from assay.workloads import registry
from benchmarks.tuners_tables import key_of, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.values import TunerName
    from assay.launch.workers import TrialOutcome

RESULTS = Path(__file__).parent / "results" / "h200"
SAMPLES = "tuners.samples.json.xz"
SLOW = "helion"
TRIES = 5
MOST_S = 560.0
"""No try begins that would not leave time to time the choices again; the watchdog ends a hang a little later."""
RETIMING_S = 60.0
PROCESSES, START_S = 3, 7.0
"""Each choice is timed in so many processes, one after another; about so long one takes to start."""
BUDGET_S = 20.0
SHAPE = {"rows": "4096", "cols": "8192"}
TUNERS: dict[TunerName, str] = {"pick": "softmax@triton", "triton": "softmax@triton", "helion": "softmax@helion"}
LOADS: dict[str, tuple[str, str] | None] = {
    "quiet": None,
    "CPU hogs": ("cpu_hog@python", HOST),
    "co-tenant on the GPU": ("gemm@torch", "cuda:0"),
}
Kept = dict[str, Any]


def subject(spec: str, device_kind: str, shape: dict[str, str] | None = None) -> Subject:
    """Return a workload with its parameters."""
    return registry.resolve_subject(spec, device_kind=device_kind, explicit=shape)


def trial(tuner: TunerName, condition: str, number: int, device: str, shape: dict[str, str]) -> Trial:
    """Return one try: time the default, then tune, beside the load all the while; nobody is pinned."""
    kind = device.partition(":")[0]
    roles = [
        Role(
            name="tuned",
            subjects=(subject(TUNERS[tuner], kind, shape),),
            devices=(device,),
            isolation="gpu",
            tuner=Tuner(name=tuner, budget_s=BUDGET_S),
        )
    ]
    load = LOADS[condition]
    if load is not None:
        spec, location = load
        on_host = location == HOST
        roles.append(
            Role(
                name=condition,
                subjects=(subject(spec, "cpu" if on_host else kind),),
                duty="load",
                devices=(HOST if on_host else device,),
                worker=0 if on_host else 1,
                isolation="gpu",
            )
        )
    return Trial(
        block=f"try-{number}",
        roles=tuple(roles),
        schedule="together",
        mode=Adaptive(duration_s=0.5, timeout_s=90.0),
        settings={"tuner": tuner, "condition": condition},
        seed=number,
    )


def quiet(subjects: list[Subject], device: str, number: int) -> Trial:
    """Return one of the trials that time configurations of one implementation in turns, in quiet, each in one process.

    As restarts of one trial they would not all be measured: no more than half of a trial's time goes to starting.
    """
    role = Role(name="quiet", subjects=tuple(subjects), devices=(device,), isolation="full")
    mode = Adaptive(duration_s=START_S + 0.3 * len(subjects), precision=None, timeout_s=120.0)
    return Trial(block=f"quiet-{number}", roles=(role,), mode=mode, seed=number)


def summarize_tuning(outcome: TrialOutcome, tuner: str, condition: str, number: int) -> Kept:
    """Return what came of a try."""
    result = outcome.tunings[0] if outcome.tunings else None
    load = next((e for e in outcome.evidence if e.load_calls is not None), None)
    return {
        "tuner": tuner,
        "condition": condition,
        "try": number,
        "status": outcome.status,
        "reason": outcome.reason if result is None else result.reason,
        "config": result.config if result else None,
        "time_us": result.time_us if result else None,
        "tuning_s": result.tuning_s if result else None,
        "version": result.version if result else None,
        "tried": [(entry.time_us, entry.reason is None) for entry in result.tried] if result else [],
        "load": None if load is None else {"calls": load.load_calls, "s": load.load_s, "cpu_s": load.load_cpu_s},
    }


def retimed(outcomes: Iterable[TrialOutcome], subjects: list[Subject]) -> dict[str, list[float]]:
    """Return the median time of each configuration in each process, by its key."""
    import numpy as np

    results: dict[str, list[float]] = {}
    for outcome in outcomes:
        samples = {series.quantity for series in outcome.series}
        quantity = next((name for name in TIME_QUANTITIES if name in samples), None)
        for series in outcome.series:
            if series.quantity == quantity:
                key = key_of(subjects[series.subject].config or {})
                results.setdefault(key, []).append(float(np.median(np.frombuffer(series.data))))
    return results


def left_of(raw: Kept, tries: int) -> list[tuple[TunerName, str, int]]:
    """Return what is still to be tried, try after try, each in a random order; quick tuners first."""
    done = {(t["tuner"], t["condition"], t["try"]) for visit in raw["visits"] for t in visit["tries"]}
    targets = [(t, c, n) for n in range(1, tries + 1) for t in TUNERS for c in LOADS if (t, c, n) not in done]
    random.Random(len(done)).shuffle(targets)
    return sorted(targets, key=lambda entry: (entry[0] == SLOW, entry[2]))


def run(folder: Path, *, tries: int, device: str = "cuda:0", shape: dict[str, str] | None = None) -> None:
    """Measure what is left, and keep what there is after each try."""
    faulthandler.dump_traceback_later(MOST_S + 30, exit=True)
    begin = time.monotonic()
    raw = load_kept(RESULTS) if (RESULTS / SAMPLES).exists() and device.startswith("cuda") else {"visits": []}
    targets = left_of(raw, tries)
    visit: Kept = {"tries": [], "quiet": {}}
    raw["visits"].append(visit)
    directory = Path(mkdtemp(prefix="tuners-"))
    (directory / "logs").mkdir()
    launcher = Launcher(detect(), LocalStarter(directory, Path.cwd()))
    longest_s = BUDGET_S
    with Guardian():
        for tuner, condition, number in targets:
            if time.monotonic() - begin > MOST_S - RETIMING_S - longest_s:
                continue
            begun = time.monotonic()
            planned = trial(tuner, condition, number, device, shape or SHAPE)
            visit["tries"].append(summarize_tuning(launcher.measure(planned), tuner, condition, number))
            longest_s = max(longest_s, time.monotonic() - begun)
            print(json.dumps({k: visit["tries"][-1][k] for k in ("tuner", "condition", "try", "tuning_s", "reason")}))
            keep(folder, raw)
        for spec in dict.fromkeys(TUNERS.values()):
            default = subject(spec, device.partition(":")[0], shape or SHAPE)
            chosen = [t["config"] for t in visit["tries"] if TUNERS[t["tuner"]] == spec and t["config"] is not None]
            configs = {key_of(config): config for config in chosen}
            if configs:
                subjects = [default.model_copy(update={"config": config}) for config in configs.values()]
                again = (launcher.measure(quiet(subjects, device, number)) for number in range(PROCESSES))
                visit["quiet"][spec] = retimed(again, subjects)
    visit["took_s"] = round(time.monotonic() - begin, 1)
    keep(folder, raw)
    faulthandler.cancel_dump_traceback_later()


def keep(folder: Path, raw: Kept) -> None:
    """Write down what was measured, and the table that follows from it."""
    from benchmarks.clock import fingerprint

    folder.mkdir(parents=True, exist_ok=True)
    if "machine" not in raw["visits"][-1]:
        raw["visits"][-1]["machine"] = fingerprint() if detect().gpus else {"gpu": None}
    (folder / SAMPLES).write_bytes(lzma.compress(json.dumps(raw).encode()))
    machines = [visit["machine"] for visit in raw["visits"]]
    published = {"command": "python benchmarks/tuners.py run", "machines": machines, "table": table(raw, TUNERS)}
    (folder / "tuners.json").write_text(json.dumps(published, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_kept(folder: Path) -> Kept:
    """Return what was measured so far."""
    raw: Kept = json.loads(lzma.decompress((folder / SAMPLES).read_bytes()))
    return raw


def verified(folder: Path) -> str:
    """Return the table that follows from what was kept, having made sure that it is the published one."""
    raw = load_kept(folder)
    published = json.loads((folder / "tuners.json").read_text(encoding="utf-8"))["table"]
    results = table(raw, TUNERS)
    if results != published:
        print("What is published does not follow from what was kept.", file=sys.stderr)
        sys.exit(1)
    return results


def main() -> int:
    """Run or verify."""
    words = sys.argv[1:]
    if not words or words[0] not in {"run", "verify"} or len(words) % 2 == 0:
        print(__doc__)
        return 2
    options = dict(zip(words[1::2], words[2::2], strict=True))
    folder = Path(options.get("--to", str(RESULTS)))
    if words[0] == "run":
        run(folder, tries=int(options.get("--tries", TRIES)))
    print(verified(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
