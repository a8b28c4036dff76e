"""What a token costs on a real GPU, beside a bare ``generate`` loop, and a model that is split between GPU and CPU.

    python benchmarks/tokens.py run FOLDER [first] [again] [bare] [split]   measure; all of it goes into FOLDER
    python benchmarks/tokens.py keep FOLDER                                 pack what was measured as evidence
    python benchmarks/tokens.py verify                                      compute the tables again from what is kept

``first`` is ``assay energy run benchmarks/tokens.yaml``; ``again`` the same with windows twice as long, this day or
another. ``bare`` builds the same model without Assay and calls ``generate`` with the same lengths, once with one output
token and once with all of them: the difference is decoding. ``split`` keeps a part of a smaller model on the CPU and
compares where everything lies, and the logits, with the plan and the model that is not split.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import evidence
from benchmarks.tokens_tables import against_bare, agreement, cells_of, reached, split_line

if TYPE_CHECKING:
    from assay.experiments.energy.config import EnergyConfig

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "benchmarks/tokens.yaml"
COMMANDS = {
    "first": ("energy", "run", CONFIG),
    "again": ("energy", "run", CONFIG, "--set", "scenario.window_s=8"),
}
NAMES = {"first": "tokens", "again": "tokens_again"}
BARE = evidence.RESULTS / "tokens_bare.json"
SPLIT = evidence.RESULTS / "tokens_split.json"
ROUNDS = 3
SPLIT_MODEL, SPLIT_MEMORY = "random:llama-1b", {"0": "2GiB", "cpu": "16GiB"}


def run(folder: Path, parts: list[str], config: str = CONFIG) -> int:
    """Measure the parts asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    codes = []
    for part in parts:
        if part in COMMANDS:
            words = [config if word == CONFIG else word for word in COMMANDS[part]]
            command = [sys.executable, "-m", "assay", *words, "--no-history", "--output-dir", str(folder / part)]
            codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
        elif part == "bare":
            write(folder / "bare.json", bare(read(config)))
        elif part == "split":
            write(folder / "split.json", split())
    return max(codes, default=0)


def read(path: str) -> EnergyConfig:
    """Return a configuration."""
    from assay.experiments.energy.reading import read_config

    return read_config(Path(path) if Path(path).exists() else ROOT / path, ())[0]


def bare(config: EnergyConfig) -> dict[str, Any]:
    """Return how long a bare ``generate`` takes, in seconds: with one output token, and with all of them."""
    import torch
    from transformers import AutoModelForCausalLM

    from assay.workloads.generation.hub import config_of

    scenario = config.scenario
    device = torch.device("cpu" if config.backend.device == "cpu" else f"cuda:{(config.backend.device_ids or (0,))[0]}")
    dtype = getattr(torch, "float32" if config.backend.torch_dtype == "auto" else config.backend.torch_dtype)
    shape = config_of(config.backend.model)
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    with device:
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype).eval()
    torch.set_default_dtype(torch.float32)
    length, output = scenario.input_tokens[0], scenario.output_tokens[0]
    found: dict[str, Any] = {"input_tokens": length, "output_tokens": output, "batches": {}}
    for batch in scenario.batch_sizes:
        prompt = torch.randint(0, shape.vocab_size, (batch, length), device=device)
        mask = torch.ones_like(prompt)
        times: dict[str, list[float]] = {"one_s": [], "all_s": []}
        for number in range(-1, ROUNDS):
            for name, new in (("one_s", 1), ("all_s", output)):
                began = time.perf_counter()
                made = model.generate(
                    prompt, attention_mask=mask, min_new_tokens=new, max_new_tokens=new, do_sample=False, pad_token_id=0
                )
                if int(made[:, -1].sum()) >= 0 and number >= 0:  # read by the host: it is there
                    times[name].append(time.perf_counter() - began)
        found["batches"][str(batch)] = times
    return found


def split() -> dict[str, Any]:
    """Return whether a model that is split between a GPU and the CPU lies where it was planned, and gives the same."""
    import torch

    from assay.workloads.generation.loading import loaded
    from assay.workloads.generation.params import Generation

    whole = Generation(model=SPLIT_MODEL, torch_dtype="float32", device_ids="[0]")
    parts = whole.model_copy(update={"max_memory": json.dumps(SPLIT_MEMORY)})
    ids = torch.arange(1, 65).reshape(1, -1)
    logits, maps = [], []
    for generation in (whole, parts):
        found = loaded(generation, "cuda:0", 0)
        with torch.inference_mode():
            logits.append(found.model(ids.to(found.device)).logits.float().cpu())
        maps.append(dict(found.placement))
        found.release()
    error = (logits[0] - logits[1]).abs().max().item()
    return {
        "model": SPLIT_MODEL,
        "max_memory": SPLIT_MEMORY,
        "placement": maps[1],
        "max_error": error,
        "largest_logit": logits[0].abs().max().item(),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write down what was measured."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def keep(folder: Path) -> None:
    """Pack every part that was measured."""
    for part, name in NAMES.items():
        for found in sorted((folder / part).glob("energy*")) if (folder / part).is_dir() else []:
            if found.is_dir() and not found.is_symlink():
                evidence.keep(found, name, ["assay", *COMMANDS[part]])
    for source, kept in ((folder / "bare.json", BARE), (folder / "split.json", SPLIT)):
        if source.exists():
            kept.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")


def verify() -> int:
    """Compute the findings of every kept run again, and print what is published; 1 where they differ."""
    differing = 0
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in NAMES.values():
        if not (evidence.RESULTS / f"{name}.json").exists():
            continue
        content = evidence.published(name)
        if evidence.recomputed(name) != content["findings"]:
            print(f"{name}: what follows from the samples is not what was published")
            differing = 1
        with evidence.unpacked(name) as run_folder:
            rows[name] = cells_of(run_folder)
        print(reached(rows[name]) + "\n")
    if len(rows) == len(NAMES):
        print(agreement(*rows.values()) + "\n")
    if BARE.exists() and "tokens" in rows:
        print(against_bare(rows["tokens"], json.loads(BARE.read_text(encoding="utf-8"))) + "\n")
    if SPLIT.exists():
        print(split_line(json.loads(SPLIT.read_text(encoding="utf-8"))))
    return differing if rows else 1


def main(words: list[str]) -> int:
    """Do what is asked for."""
    match words:
        case ["run", folder, *parts]:
            configs = [part for part in parts if part.endswith(".yaml")]
            parts = [part for part in parts if part not in configs] or ["first", "bare", "split"]
            return run(Path(folder), parts, *configs)
        case ["keep", folder]:
            keep(Path(folder))
            return 0
        case ["verify"]:
            return verify()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
