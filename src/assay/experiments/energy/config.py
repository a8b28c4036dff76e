"""What ``assay energy run`` is told: backend, scenario, metrics, reporters, as its YAML names them.

Here is what each says for itself; what they must not say together is in ``rules``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, FiniteFloat, JsonValue, field_validator

from assay.core.errors import BadInput
from assay.core.values import Value
from assay.workloads.generation.limits import ELSEWHERE, bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DeviceMapName = Literal["auto", "balanced", "balanced_low_0", "sequential"]
Mode = Literal["eager", "graphs"]
ReporterType = Literal["csv", "json", "markdown", "html", "ai_energy_score"]

DEVICE_MAPS: tuple[str, ...] = get_args(DeviceMapName)
MOST_AT_ONCE = 65_536
"""Sequences of a batch, or requests in flight: more than any GPU holds."""
MOST_TOKENS = 10_000_000
MOST_PROCESSES = MOST_CALLS = 1000
MOST_PROMPTS = 1_000_000_000
MOST_RANKS = 1024
MOST_G_PER_KWH = 100_000
DAY_S = 86_400.0
LAST_SEED = 2**63 - 1
MOST_DIGITS = 19
RANDOM_PROMPTS = "random"


def several(said: object) -> list[Any]:
    """Return a list of what is one value, a list already, or text with commas."""
    if isinstance(said, str):
        return [part for part in re.split(r"[,\s]+", said) if part]
    return list(said) if isinstance(said, list | tuple) else [said]


def _sizes(most: int) -> Callable[[object], object]:
    """Return who reads sizes from 1 to ``most``, each once."""

    def read(said: object) -> object:
        sizes = several(said)
        if not sizes or any(not 1 <= _whole(size) <= most for size in sizes):
            raise ValueError(f"must be a whole number from 1 to {most}, or a list of such, and is {said!r}")
        return _each_once(sizes)

    return read


def _gpus(said: object) -> object:
    if said is None:
        return None
    gpus = several(said)
    if not gpus or any(_whole(gpu) < 0 for gpu in gpus):
        raise ValueError(f"must be a GPU's number as nvidia-smi has it, or a list of such, and is {said!r}")
    return _each_once(gpus)


def _whole(said: object) -> int:
    """Return a whole number that is at least 0, as number or text; -1: it is none."""
    if isinstance(said, int) and not isinstance(said, bool):
        return max(said, -1)
    return int(said) if isinstance(said, str) and said.isdecimal() and len(said) <= MOST_DIGITS else -1


def _place(said: object) -> int | str | None:
    """Return a GPU's number, ``cpu`` or ``disk``; null: it is none of them."""
    if said in ELSEWHERE:
        return str(said)
    number = _whole(said.removeprefix("cuda:") if isinstance(said, str) else said)
    return number if number >= 0 else None


def _each_once(said: Sequence[Any]) -> tuple[int, ...]:
    numbers = [int(value) for value in said]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise ValueError(f"has {twice} more than once")
    return tuple(numbers)


AtOnce = Annotated[tuple[int, ...], BeforeValidator(_sizes(MOST_AT_ONCE))]
Tokens = Annotated[tuple[int, ...], BeforeValidator(_sizes(MOST_TOKENS))]
Gpus = Annotated[tuple[int, ...] | None, BeforeValidator(_gpus)]


class Backend(Value):
    """Who makes the tokens: a model in a process of ours, or a server that speaks OpenAI's protocol."""

    type: Literal["pytorch", "openai"]
    model: str = Field(min_length=1, description="A hub's id, a folder, or random:llama-1b and the like.")
    revision: str | None = None
    trust_remote_code: bool = False
    device: Literal["auto", "cuda", "cpu"] = Field(default="auto", description="auto: GPUs where there are any.")
    device_ids: Gpus = Field(
        default=None, description="GPUs by their NVML number; null: GPU 0 (pytorch), or none that is metered (openai)."
    )
    device_map: DeviceMapName | dict[str, int | str] = "auto"
    max_memory: dict[int | str, int | str] | None = Field(
        default=None, description="By GPU number or cpu: bytes, or text as 20GB or 18GiB."
    )
    torch_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    attn_implementation: str | None = None
    tp_plan: Literal["auto"] | None = Field(default=None, description="auto: tensor parallel, one rank per GPU.")
    tp_ranks: int | None = Field(
        default=None, ge=2, le=MOST_RANKS, description="Of tp_plan without GPUs: processes that share it."
    )
    endpoint: str | None = Field(default=None, description="Of an OpenAI-compatible server: http://127.0.0.1:8000/v1.")
    api_key_env: str | None = Field(default=None, description="The variable that holds the server's key.")
    request_timeout_s: FiniteFloat = Field(
        default=120.0, gt=0, le=DAY_S, description="Without a token for so long, a server stalls."
    )

    @field_validator("model")
    @classmethod
    def _has_a_name(cls, said: str) -> str:
        if not said.strip():
            raise ValueError("is empty")
        return said

    @field_validator("device_map", mode="before")
    @classmethod
    def _a_name_or_all_of_it(cls, said: object) -> object:
        if isinstance(said, dict):
            devices = {str(part): _place(device) for part, device in said.items()}
            strange = [said[part] for part, device in devices.items() if device is None]
            if strange or not devices:
                raise ValueError(
                    f"places parts on GPUs by their numbers, cpu or disk, and not {(strange or [said])[0]!r}"
                )
            return devices
        if said not in DEVICE_MAPS:
            raise ValueError(f"must be {', '.join(DEVICE_MAPS)}, or map parts of the model to devices, and is {said!r}")
        return said

    @field_validator("max_memory", mode="before")
    @classmethod
    def _room_by_device(cls, said: object) -> object:
        if said is None:
            return None
        if not isinstance(said, dict) or not said:
            raise ValueError('must map GPU numbers or cpu to memory, as {0: "20GB", cpu: "64GB"}')
        for device, memory in said.items():
            if _place(device) is None:
                raise ValueError(f"names devices by GPU number, cpu or disk, and not {device!r}")
            try:
                bytes_of(memory)
            except BadInput:
                raise ValueError(f"gives {device} {memory!r}: write bytes, or text as 20GB or 18GiB") from None
        return {_place(device): memory for device, memory in said.items()}


class Scenario(Value):
    """What is asked of it: prompts, sizes, how often, how long."""

    prompts: str = Field(
        default=RANDOM_PROMPTS, min_length=1, description="random: seeded random token ids; or a file, or a data set."
    )
    text_column_name: str = Field(default="text", min_length=1)
    num_samples: int | None = Field(default=None, ge=1, le=MOST_PROMPTS, description="Only so many of the prompts.")
    truncation: bool = Field(default=False, description="Cut prompts to the input length; else they are refused.")
    batch_sizes: AtOnce = (1,)
    input_tokens: Tokens = (512,)
    output_tokens: Tokens = (128,)
    concurrency: AtOnce = Field(default=(1,), description="Requests in flight, of a server.")
    modes: tuple[Mode, ...] = ("eager",)
    compile: bool = Field(default=True, description="In graphs: the layers' kernels are fused by torch.compile first.")
    warmup: int = Field(default=1, ge=0, le=MOST_CALLS, description="Calls before each stage is measured.")
    repeats: int = Field(
        default=3, ge=1, le=MOST_PROCESSES, description="Processes started afresh: an interval rests on these."
    )
    window_s: FiniteFloat | None = Field(
        default=None, gt=0, le=DAY_S, description="Measured per stage; null: as is needed."
    )
    precision: float = Field(default=0.03, gt=0, lt=1, description="Wider intervals of J/token are measured longer.")
    generate_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    reasoning: bool | None = Field(default=None, description="True: the model is told to reason; false: it is not.")
    reasoning_params: dict[str, JsonValue] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, le=LAST_SEED)

    @field_validator("modes", mode="before")
    @classmethod
    def _each_mode_once(cls, said: object) -> object:
        modes = several(said)
        twice = [mode for mode in modes if modes.count(mode) > 1]
        if twice or not modes:
            raise ValueError(f"has {twice[0]} more than once" if twice else "holds nothing")
        return modes

    @property
    def reasoning_settings(self) -> dict[str, JsonValue]:
        """What the chat template of a model, or the request to a server, is told; empty: prompts go as they are."""
        if self.reasoning is False:
            return {}
        return self.reasoning_params or ({"enable_thinking": True} if self.reasoning else {})


class Metrics(Value):
    """What is metered beside the tokens."""

    enabled: bool = Field(default=True, description="False: times alone, and no energy.")
    gpus: Gpus = Field(
        default=None, description="GPUs whose energy counts, where they are not backend.device_ids: a server's."
    )
    carbon_g_per_kwh: FiniteFloat | None = Field(
        default=None, ge=0, le=MOST_G_PER_KWH, description="Null: no carbon is told."
    )
    country_iso_code: str | None = Field(default=None, description="Told in results, beside the carbon.")
    region: str | None = Field(default=None, description="Likewise.")


class Reporter(Value):
    """A file that results are written to, beside the run folder's own."""

    type: ReporterType = "csv"
    output_file: str = Field(min_length=1)


class EnergyConfig(Value):
    """All of it; the file is looked at as a whole before anything is loaded."""

    name: str | None = Field(default=None, min_length=1, max_length=100)
    output_dir: str | None = Field(default=None, min_length=1)
    backend: Backend
    scenario: Scenario = Field(default_factory=Scenario)
    metrics: Metrics = Field(default_factory=Metrics)
    reporter: tuple[Reporter, ...] = ()

    @field_validator("reporter", mode="before")
    @classmethod
    def _one_or_several(cls, said: object) -> object:
        return [said] if isinstance(said, dict) else said if said is not None else ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """Every GPU that is named, to compute on or to be metered."""
        return tuple(dict.fromkeys((*(self.backend.device_ids or ()), *(self.metrics.gpus or ()))))
