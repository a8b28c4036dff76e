"""What is measured beside the runs: a bare ``generate`` loop in turns with ours, and a model in two parts."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.experiments.energy.config import EnergyConfig
    from assay.workloads.generation.eager import EagerLoop

ROOT = Path(__file__).resolve().parents[1]
TURN_TOKENS, TURNS_S = 8, 16.0
"""So many tokens in each turn, and at each batch so long in turns."""
ORDER = ("one_s", "bare_s", "ours_s", "ours_s", "bare_s")
SPLIT_MODEL, SPLIT_MEMORY = "random:llama-1b", {"0": "2GiB", "cpu": "16GiB"}


def read(path: str) -> EnergyConfig:
    """Return a configuration."""
    from assay.experiments.energy.config_file import read_config

    return read_config(Path(path) if Path(path).exists() else ROOT / path, ())[0]


def fingerprint() -> dict[str, Any]:
    """Return what this is measured on."""
    import torch
    import transformers

    from assay.machine.detect import detect

    machine = detect()
    gpus = [gpu.name for gpu in machine.gpus]
    return {
        "gpu": gpus[0] if gpus else None,
        "driver": machine.driver,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def bare(config: EnergyConfig) -> dict[str, Any]:
    """Return how long a bare ``generate`` and Assay's plain loop take, in seconds, in turns: bare, ours, ours, bare.

    What disturbs a host comes and goes within seconds; in turns shorter than that, it is the same for both. ``one_s``
    is a bare ``generate`` of one token: what reading the prompts takes, and is no decoding. Ours is from the first
    token to the last.
    """
    import torch

    from assay.workloads.generation.eager import EagerLoop
    from assay.workloads.generation.loading import load_model
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.prompts import PromptBatch, PromptBatches

    scenario, backend = config.scenario, config.backend
    gpu = (backend.device_ids or (0,))[0]
    device = "cpu:0" if backend.device == "cpu" else f"cuda:{gpu}"
    dtype = "float32" if backend.torch_dtype == "auto" else backend.torch_dtype
    model = _built(backend.model, torch.device(device.removesuffix(":0") if "cpu" in device else device), dtype)
    ids = "" if "cpu" in device else f"[{gpu}]"
    ours = load_model(Generation(model=backend.model, torch_dtype=dtype, device_ids=ids), device, 0)
    length, output = scenario.input_tokens[0], min(scenario.output_tokens[0], TURN_TOKENS + 1)
    results: dict[str, Any] = {"input_tokens": length, "output_tokens": output, "batches": {}}
    for batch in scenario.batch_sizes:
        prompt = torch.randint(0, model.config.vocab_size, (batch, length), device=model.device)
        mask = torch.ones_like(prompt)
        loop = EagerLoop(ours, PromptBatches([PromptBatch(prompt, mask, batch * length)]), output, {})

        def alone(tokens: int, prompt: Any = prompt, mask: Any = mask) -> float:
            began = time.perf_counter()
            settings = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
            made = model.generate(prompt, attention_mask=mask, **settings)
            made[:, -1].sum().item()  # read by the host: it is there
            return time.perf_counter() - began

        calls = {"one_s": partial(alone, 1), "bare_s": partial(alone, output), "ours_s": partial(_decoded_s, loop)}
        results["batches"][str(batch)] = in_turns(calls, ORDER, TURNS_S)
        loop.close()
    return results


def _built(name: str, device: Any, dtype: str) -> Any:
    """Return a model of random weights, made without Assay."""
    import torch
    from transformers import AutoModelForCausalLM

    from assay.workloads.generation.models import load_config

    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    with device:
        model = AutoModelForCausalLM.from_config(load_config(name), dtype=getattr(torch, dtype)).eval()
    torch.set_default_dtype(torch.float32)
    return model


def _decoded_s(loop: EagerLoop) -> float:
    """Return how long our loop decodes, in seconds."""
    return sum(cast("list[float]", loop.whole()["gap_us"])) / 1e6


def in_turns(calls: Mapping[str, Callable[[], float]], order: Sequence[str], long_s: float) -> dict[str, list[float]]:
    """Return what calls say, by their names: all of them in order, once to warm up, and then for so long."""
    output: dict[str, list[float]] = {name: [] for name in calls}
    for name in order:
        calls[name]()
    until = time.perf_counter() + long_s
    while time.perf_counter() < until:
        for name in order:
            output[name].append(calls[name]())
    return output


def split(_config: EnergyConfig) -> dict[str, Any]:
    """Return whether a model that is split between a GPU and the CPU lies where it was planned, and gives the same.

    Where it does not lie as planned, loading it is an error.
    """
    import torch

    from assay.workloads.generation.loading import load_model
    from assay.workloads.generation.params import Generation

    whole = Generation(model=SPLIT_MODEL, torch_dtype="float32", device_ids="[0]")
    parts = whole.model_copy(update={"max_memory": json.dumps(SPLIT_MEMORY)})
    ids = torch.arange(1, 65).reshape(1, -1)
    logits, maps = [], []
    for generation in (whole, parts):
        result = load_model(generation, "cuda:0", 0)
        with torch.inference_mode():
            logits.append(result.model(ids.to(result.device)).logits.float().cpu())
        maps.append(dict(result.placement))
        result.release()
    error = (logits[0] - logits[1]).abs().max().item()
    return {
        "model": SPLIT_MODEL,
        "max_memory": SPLIT_MEMORY,
        "placement": maps[1],
        "max_error": error,
        "largest_logit": logits[0].abs().max().item(),
    }
