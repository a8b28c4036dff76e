"""Check which GPUs are usable, for ``assay energy check`` and for the GPUs that a configuration needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.errors import MachineCannot
from assay.core.page import Page, Section, Table, Text
from assay.core.values import Value
from assay.experiments.reporting import table_columns
from assay.machine.doctor import build_inference_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.page import Cell, Element
    from assay.machine.model import Gpu, Machine


MODELS_BY_MEMORY = (
    (40.0, "random:llama-8b"),
    (12.0, "random:llama-3b"),
    (5.0, "random:llama-1b"),
    (0.0, "random:llama-160m"),
)
"""By the GiB that all GPUs have together, at least: which model leaves room for batches beside it."""

REPORTER_YAML = """\
reporter:
  type: csv  # rows are added at every run
  output_file: energy.csv
"""
SIZES_YAML = """\
  input_tokens: 512
  output_tokens: 128
"""
SCENARIO_YAML = f"""\
scenario:
  batch_sizes: [1, 8]
{SIZES_YAML}{REPORTER_YAML}"""
CPU_YAML = f"""\
backend:
  type: pytorch
  model: random:llama-tiny  # or a hub's id, or a folder
  device: cpu
scenario:
  batch_sizes: [1]
  input_tokens: 64
  output_tokens: 16
{REPORTER_YAML}"""
SERVER_YAML = f"""\
backend:
  type: openai
  model: NAME  # by which the server knows it
  endpoint: http://127.0.0.1:8000/v1
  device_ids: [{{gpus}}]  # the server's, which are metered
scenario:
  concurrency: [1, 8]
{SIZES_YAML}{REPORTER_YAML}"""


class CheckedGpu(Value):
    """A GPU and its state. Null: not available."""

    index: int
    uuid: str | None = None
    name: str | None = None
    usable: bool = Field(description="Whether a model can compute on it.")
    metered: bool = Field(default=False, description="Whether its energy can be read, whoever computes on it.")
    status: str = Field(description="What it answered to, or why it cannot be used.")
    utilization_percent: float | None = None
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None
    temperature_c: float | None = None
    power_draw_w: float | None = None


def check_gpus(
    machine: Machine, indices: Sequence[int], touch: Callable[[str], None], torch_report: Mapping[str, Any]
) -> tuple[CheckedGpu, ...]:
    """Return the state of GPUs, given by their numbers.

    ``touch`` makes sure that the GPU of a UUID answers NVML; ``torch_report`` is as
    ``assay.worker.probes.smoke_test_gpus`` returns it.
    """
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    lost = {gpu.index: gpu.reason for gpu in machine.lost}
    results = []
    for index in indices:
        if index in gpus:
            results.append(_check_gpu(gpus[index], touch, torch_report))
            continue
        here = f"there is none; here are {', '.join(map(str, gpus)) or 'no GPUs'}"
        results.append(CheckedGpu(index=index, usable=False, status=lost.get(index, here)))
    return tuple(results)


def _check_gpu(gpu: Gpu, touch: Callable[[str], None], torch_report: Mapping[str, Any]) -> CheckedGpu:
    metered = True
    try:
        touch(gpu.uuid)
        problem = _compute_problem(gpu, torch_report)
    except MachineCannot as error:
        metered, problem = False, str(error).rstrip(".")
    state = gpu.state
    return CheckedGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        usable=problem is None,
        metered=metered,
        status=problem or "a kernel ran on it",
        utilization_percent=None if state is None else state.utilisation_percent,
        memory_used_mb=None if state is None else state.memory_used_mib,
        memory_total_mb=gpu.memory_mib,
        temperature_c=None if state is None else state.temperature_c,
        power_draw_w=None if state is None else state.power_w,
    )


def _compute_problem(gpu: Gpu, torch_report: Mapping[str, Any]) -> str | None:
    """Return why PyTorch cannot compute on a GPU that answers; null: a kernel ran on it."""
    if gpu.mig:
        return "it is cut into MIG instances, and is not to be had whole"
    if (why := _cuda_problem(torch_report)) is not None:
        return f"it answers NVML, but {why}"
    gpu_report = torch_report["gpus"].get(gpu.uuid)
    if gpu_report is None:
        return f"PyTorch sees {len(torch_report['gpus'])} GPUs, and not this one: look at CUDA_VISIBLE_DEVICES"
    return None if gpu_report["error"] is None else str(gpu_report["error"])


def _cuda_problem(torch_report: Mapping[str, Any]) -> str | None:
    """Return why PyTorch can use no GPU at all; null where it can, or was not asked."""
    if not torch_report:
        return None
    if "error" in torch_report:
        return f"PyTorch cannot be asked: {torch_report['error']}"
    if torch_report["torch"] is None:
        return "PyTorch is not installed"
    return "this PyTorch is built without CUDA" if torch_report["cuda"] is None else None


def recommend_config(gpus: Sequence[Gpu], *, metered: Sequence[int] = (), without_torch: bool = False) -> str:
    """Return a whole configuration as YAML: for these GPUs; or else for a server beside GPUs, or for the CPU.

    Args:
        gpus: Those that a model can compute on.
        metered: Those whose energy can be read, where a model can compute on none.
        without_torch: No model computes here at all, not on the CPU either.
    """
    header = "# Written by `assay energy check`"
    if not gpus:
        server = SERVER_YAML.format(gpus=", ".join(map(str, metered)))
        if metered and without_torch:
            return f"{header}: no model computes here; GPUs are metered beside a server.\nname: energy\n{server}"
        aside = "".join(f"#   {line}\n" for line in server.splitlines())
        comment = f"# This instead measures a server's tokens, with its GPUs metered:\n{aside}" if metered else ""
        return f"{header}: no GPU can be computed on.\n{comment}name: energy\n{CPU_YAML}"
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    gib = sum(gpu.memory_mib or 0.0 for gpu in gpus) / 1024
    model = next(model for least, model in MODELS_BY_MEMORY if gib >= least)
    named = f"  type: pytorch\n  model: {model}  # or a hub's id, or a folder\n"
    backend = build_inference_yaml(tuple(gpus)).replace("  type: pytorch\n", named, 1)
    return f"{header} for {len(gpus)} × {' and '.join(names)}.\nname: energy\n{backend}{SCENARIO_YAML}"


def metered_only_note(torch_report: Mapping[str, Any]) -> str | None:
    """Say that no model can compute on GPUs, where PyTorch cannot; null where it can, or was not asked."""
    why = _cuda_problem(torch_report)
    return None if why is None else f"No model can compute on GPUs here, as {why}; they can be metered beside a server"


def build_check_page(
    machine: Machine, checked_gpus: Sequence[CheckedGpu], yaml: str, command: str, note: str | None
) -> Page:
    """Return what was found for people."""
    usable = [gpu for gpu in checked_gpus if gpu.usable]
    lead = f"{len(usable)} of {len(checked_gpus)} GPUs can be used." if note is None else f"{note}."
    if not checked_gpus:
        lead = f"No GPU: {machine.gpu_note or 'none is visible'}."
    elements: list[Element] = [_gpu_table(machine, checked_gpus)] if checked_gpus else []
    bad = [gpu for gpu in checked_gpus if not gpu.usable and (note is None or not gpu.metered)]
    elements += [Text(text=f"GPU {gpu.index}: {gpu.status}.", tone="bad") for gpu in bad]
    if not usable and "type: pytorch\n" in yaml:
        elements.append(Text(text="What can be run without one: a small model on the CPU, whose times are measured."))
    sections: dict[str, list[Element]] = {
        "GPUs": elements,
        "Configuration": [Text(text=yaml)],
        "To run it": [Text(text=command)],
    }
    return Page(
        title="assay energy check",
        lead=lead,
        lead_tone="good" if checked_gpus and len(usable) == len(checked_gpus) else "bad",
        sections=tuple(Section(title=title, elements=tuple(part)) for title, part in sections.items()),
        origin="fake" if machine.has_fake_driver else "real",
    )


def _gpu_table(machine: Machine, checked_gpus: Sequence[CheckedGpu]) -> Table:
    return Table(
        title=f"As they are now, driver {machine.driver or 'unknown'}",
        columns=table_columns("GPU", "name", "touched", "busy, %", "memory, MiB", "°C", "W", words=3),
        rows=tuple(map(_gpu_row, checked_gpus)),
        tones=tuple("good" if gpu.usable else "bad" for gpu in checked_gpus),
    )


def _gpu_row(gpu: CheckedGpu) -> tuple[Cell, ...]:
    used, total = (None if size is None else f"{size:.0f}" for size in (gpu.memory_used_mb, gpu.memory_total_mb))
    memory = total if used is None or total is None else f"{used} of {total}"
    watts = None if gpu.power_draw_w is None else round(gpu.power_draw_w)
    busy = gpu.utilization_percent
    touched = gpu.status if gpu.usable else "by NVML alone" if gpu.metered else "no"
    return gpu.index, gpu.name, touched, busy, memory, gpu.temperature_c, watts
