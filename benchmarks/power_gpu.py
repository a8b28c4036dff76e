"""Watts of a real GPU, left as it was found: cases, a bare cuBLAS loop beside them, and load sweeps.

    python benchmarks/power_gpu.py run FOLDER [cases] [sizes] [duty]     measure; runs and raw lines go into FOLDER
    python benchmarks/power_gpu.py keep FOLDER                           pack what was measured as evidence
    python benchmarks/power_gpu.py verify                                compute the tables again from what is kept

The bare loop is ``native/sgemm``: cuBLAS called back to back from C++, before and after the cases, in the same visit.
"""

from __future__ import annotations

import json
import lzma
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.experiments.base import conclude, find_experiment
from assay.experiments.power.rows import SWEEP_FILE, SweepRow
from benchmarks import evidence
from benchmarks.evidence_tables import table

ROOT = Path(__file__).resolve().parents[1]
BARE = evidence.RESULTS / "power_bare.json"
KERNELS = evidence.RESULTS / "power_kernels.csv.xz"
CASES = "benchmarks/power_gpu_cases.yaml"
COMMANDS = {
    "cases": ("power", "characterize", CASES, "--gpus", "0"),
    "sizes": (
        "power", "sweep", "sgemm", "--gpus", "0", "--sizes", "1024,2048,4096,8192,16384",
        "--repeat", "3", "--duration", "3", "--settle", "4",
    ),
    "duty": (
        "power", "sweep", "sgemm", "--gpus", "0", "--duty", "25%:100%:25%", "--param", "n=4096",
        "--repeat", "2", "--duration", "3", "--settle", "4",
    ),
}  # fmt: skip
NAMES = {"cases": "power", "sizes": "power_sizes", "duty": "power_duty"}
BARE_REPETITIONS = 40


def run(folder: Path, parts: list[str]) -> int:
    """Measure the parts asked for, the bare loop around the cases."""
    codes = []
    for part in parts:
        if part == "cases":
            bare(folder / "bare-before.jsonl")
        command = [sys.executable, "-m", "assay", *COMMANDS[part], "--output-dir", str(folder / part)]
        codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
        if part == "cases":
            bare(folder / "bare-after.jsonl")
    return max(codes, default=2)


def bare(path: Path) -> None:
    """Run the cuBLAS loop on the size that the workload chooses, and keep its lines."""
    from assay.workloads.ops.gemm import filling_side, gpu_shape

    path.parent.mkdir(parents=True, exist_ok=True)
    n = filling_side(gpu_shape("cuda:0"), "float32")
    subprocess.run(["make", "-s", "-C", str(ROOT / "native")], check=True)
    words = [str(ROOT / "native" / "sgemm"), str(n), str(BARE_REPETITIONS), "0"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    path.write_text(done.stdout, encoding="utf-8")


def keep(folder: Path) -> None:
    """Pack every part that was measured."""
    for part, name in NAMES.items():
        for result in sorted((folder / part).glob("power*")) if (folder / part).is_dir() else []:
            if result.is_dir() and not result.is_symlink():
                evidence.keep(result, name, ["assay", *COMMANDS[part]])
                table_of_kernels = result / "power" / "kernels.csv"
                if part == "cases" and table_of_kernels.exists():
                    with table_of_kernels.open("rb") as file, lzma.open(KERNELS, "wb") as packed:
                        shutil.copyfileobj(file, packed)
    lines = {name: (folder / f"bare-{name}.jsonl") for name in ("before", "after")}
    saved = {name: path.read_text(encoding="utf-8").splitlines() for name, path in lines.items() if path.exists()}
    if saved:
        content = {name: [json.loads(line) for line in output] for name, output in saved.items()}
        BARE.write_text(json.dumps(content) + "\n", encoding="utf-8")


def verify() -> int:
    """Compute the findings of every kept run again, and print what is published; 1 where they differ."""
    differing = 0
    for name in NAMES.values():
        content = evidence.published(name)
        if not evidence.same(evidence.recomputed(name), content["findings"]):
            print(f"{name}: what follows from the samples is not what was published")
            differing = 1
        print(table(content["findings"], content["experiment"]) + "\n")
        if content["experiment"] == "power_sweep":
            print(steps(name) + "\n")
    print(beside_the_bare_loop())
    return differing


def steps(name: str) -> str:
    """Return every step of a kept sweep."""
    with evidence.unpacked(name) as folder:
        conclude(find_experiment(folder.plan.experiment), folder)
        rows = [SweepRow.model_validate_json(line) for line in (folder.path / SWEEP_FILE).read_text().splitlines()]
    lines = ["| step | time of a call, ms | W | J a call (95 %) | GFLOP/J |", "|---|---|---|---|---|"]
    for row in rows:
        step = f"{100 * float(str(row.setting)):g} %" if row.knob == "duty" else f"n = {row.setting}"
        joules = f"{row.energy_per_call_j:.4g} ({row.energy_low_j:.4g} – {row.energy_high_j:.4g})"
        watts = f"{row.power_w:.0f}"
        lines.append(f"| {step} | {row.median_us / 1e3:.4g} | {watts} | {joules} | {row.gflop_per_j:.1f} |")
    return "\n".join(lines)


def beside_the_bare_loop() -> str:
    """Return the rate of the timed workload beside that of the bare loop, and the joules of short and long runs."""
    content = json.loads(BARE.read_text(encoding="utf-8"))
    theirs = statistics.median(line["gflops"] for text in content.values() for line in text if "kernel" in line) / 1e3
    n = next(line["n"] for line in content["before"] if "n" in line)
    gpus = [f["facts"] for f in evidence.published("power")["findings"]["findings"] if f["kind"] == "gpu"]
    by_case: dict[str, dict[str, Any]] = {facts["case"]: facts for facts in gpus}
    short, long = by_case["sgemm"], by_case["sgemm, long"]
    ours = 2 * n**3 / short["median_us"] / 1e6
    times = [facts["median_us"] / 1e3 for facts in (short, long)]
    joules = [facts["energy_per_call_j"] for facts in (short, long)]
    compared = {
        f"FP32 rate of `sgemm`, n = {n}, TFLOP/s; a bare cuBLAS loop": (ours, theirs),
        "time of a kernel, ms; over 60 s": times,
        "energy of a kernel, J; over 60 s": joules,
    }
    lines = ["| what | Assay, 8 s | beside it | ratio |", "|---|---|---|---|"]
    lines += [f"| {what} | {mine:.2f} | {other:.2f} | {mine / other:.3f} |" for what, (mine, other) in compared.items()]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run, keep or verify."""
    if len(arguments) >= 2 and arguments[0] == "run" and set(arguments[2:]) <= set(COMMANDS):
        return run(Path(arguments[1]).absolute(), arguments[2:] or list(COMMANDS))
    if len(arguments) == 2 and arguments[0] == "keep":
        keep(Path(arguments[1]))
        return 0
    if arguments == ["verify"]:
        return verify()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
