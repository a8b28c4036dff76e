"""The configuration of ``assay energy run``: backend, scenario, metrics and reporters as its YAML names them.

The models validate each field; ``find_contradictions`` and ``find_ineffective_settings`` check fields against each
other.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, JsonValue, field_validator

from assay.core.errors import BadInput
from assay.core.values import Value
from assay.workloads.generation.models import is_random, model_shape
from assay.workloads.generation.params import parse_settings
from assay.workloads.generation.placement import OFFLOAD_DEVICES, parse_bytes
from assay.workloads.generation.server.protocol import RequestFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from assay.experiments.file_locator import KeyPath


T = TypeVar("T")

DeviceMapName = Literal["auto", "balanced", "balanced_low_0", "sequential"]
DecodeMode = Literal["eager", "graphs"]
ReporterType = Literal["csv", "json", "markdown", "html", "ai_energy_score"]

DEVICE_MAPS: tuple[str, ...] = get_args(DeviceMapName)
MAX_CONCURRENCY = 65_536
"""Sequences of a batch, or requests in flight: more than any GPU holds."""
MAX_TOKENS = 10_000_000
MAX_PROCESSES = MAX_CALLS = 1000
MAX_PROMPTS = 1_000_000_000
MAX_RANKS = 1024
MAX_G_PER_KWH = 100_000
DAY_S = 86_400.0
MAX_SEED = 2**63 - 1
MAX_DIGITS = 19
RANDOM_PROMPTS = "random"


def parse_list(value: object) -> list[Any]:
    """Return a list of what is one value, a list already, or text with commas."""
    if isinstance(value, str):
        return [part for part in re.split(r"[,\s]+", value) if part]
    return list(value) if isinstance(value, list | tuple) else [value]


def _parse_numbers(value: object) -> list[Any] | None:
    if value is None:
        return None
    numbers = parse_list(value)
    if any(isinstance(number, bool) for number in numbers):
        raise ValueError(f"should be a whole number or a list of them, and is {value!r}")
    return numbers


def _check_unique(values: tuple[T, ...]) -> tuple[T, ...]:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(f"has {twice} more than once")
    return values


def _parse_device(value: object) -> int | str:
    """Return a GPU's number, ``cpu`` or ``disk``."""
    if value in OFFLOAD_DEVICES:
        return str(value)
    number = value.removeprefix("cuda:") if isinstance(value, str) else value
    if isinstance(number, bool) or not str(number).isdecimal() or len(str(number)) > MAX_DIGITS:
        raise ValueError(f"names devices by GPU number, cpu or disk, and not {value!r}")
    return int(str(number))


Concurrencies = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)], ...],
    Field(min_length=1),
    BeforeValidator(_parse_numbers),
    AfterValidator(_check_unique),
]
TokenCounts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MAX_TOKENS)], ...],
    Field(min_length=1),
    BeforeValidator(_parse_numbers),
    AfterValidator(_check_unique),
]
GpuList = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_check_unique)]
GpuIndices = Annotated[GpuList | None, BeforeValidator(_parse_numbers)]


class EnergyBackend(Value):
    """Who makes the tokens: a model in a process of ours, or a server that speaks OpenAI's protocol."""

    type: Literal["pytorch", "openai"]
    model: str = Field(min_length=1, description="A hub's id, a folder, or random:llama-1b and the like.")
    revision: str | None = None
    trust_remote_code: bool = False
    device: Literal["auto", "cuda", "cpu"] = Field(default="auto", description="auto: GPUs where there are any.")
    device_ids: GpuIndices = Field(
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
        default=None, ge=2, le=MAX_RANKS, description="Of tp_plan without GPUs: processes that share it."
    )
    endpoint: str | None = Field(default=None, description="Of an OpenAI-compatible server: http://127.0.0.1:8000/v1.")
    api_key_env: str | None = Field(default=None, description="The variable that holds the server's key.")
    request_timeout_s: FiniteFloat = Field(
        default=120.0, gt=0, le=DAY_S, description="Without a token for so long, a server stalls."
    )

    @field_validator("model")
    @classmethod
    def _require_name(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty")
        return value

    @field_validator("device_map", mode="before")
    @classmethod
    def _check_device_map(cls, value: object) -> object:
        if isinstance(value, dict) and value:
            return {str(part): _parse_device(device) for part, device in value.items()}
        if value not in DEVICE_MAPS:
            raise ValueError(
                f"must be {', '.join(DEVICE_MAPS)}, or map parts of the model to devices, and is {value!r}"
            )
        return value

    @field_validator("max_memory", mode="before")
    @classmethod
    def _check_max_memory(cls, value: object) -> object:
        if value is None:
            return None
        if not isinstance(value, dict) or not value:
            raise ValueError('must map GPU numbers or cpu to memory, as {0: "20GB", cpu: "64GB"}')
        limits = {_parse_device(device): memory for device, memory in value.items()}
        for device, memory in value.items():
            try:
                parse_bytes(memory)
            except BadInput:
                raise ValueError(f"gives {device} {memory!r}: write bytes, or text as 20GB or 18GiB") from None
        return limits


class EnergyScenario(Value):
    """What is asked of it: prompts, sizes, how often, how long."""

    prompts: str = Field(
        default=RANDOM_PROMPTS, min_length=1, description="random: seeded random token ids; or a file, or a data set."
    )
    text_column_name: str = Field(default="text", min_length=1)
    num_samples: int | None = Field(default=None, ge=1, le=MAX_PROMPTS, description="Only so many of the prompts.")
    truncation: bool = Field(default=False, description="Cut prompts to the input length; else they are refused.")
    batch_sizes: Concurrencies = (1,)
    input_tokens: TokenCounts = (512,)
    output_tokens: TokenCounts = (128,)
    concurrency: Concurrencies = Field(default=(1,), description="Requests in flight, of a server.")
    modes: Annotated[tuple[DecodeMode, ...], BeforeValidator(parse_list), AfterValidator(_check_unique)] = Field(
        default=("eager",), min_length=1
    )
    compile: bool = Field(default=True, description="In graphs: the layers' kernels are fused by torch.compile first.")
    warmup: int = Field(default=1, ge=0, le=MAX_CALLS, description="Calls before each stage is measured.")
    repeats: int = Field(
        default=3, ge=1, le=MAX_PROCESSES, description="Processes started afresh: an interval rests on these."
    )
    window_s: FiniteFloat | None = Field(
        default=None, gt=0, le=DAY_S, description="Measured per stage; null: as is needed."
    )
    precision: float = Field(default=0.03, gt=0, lt=1, description="Wider intervals of J/token are measured longer.")
    generate_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    reasoning: bool | None = Field(default=None, description="Whether to ask the model to reason; null: its default.")
    reasoning_params: dict[str, JsonValue] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, le=MAX_SEED)

    @property
    def reasoning_settings(self) -> dict[str, JsonValue]:
        """Arguments of a model's chat template, or of the request to a server; empty: prompts go as they are."""
        if self.reasoning is False:
            return {}
        return self.reasoning_params or ({"enable_thinking": True} if self.reasoning else {})


class EnergyMetrics(Value):
    """What is metered beside the tokens."""

    enabled: bool = Field(default=True, description="False: times alone, and no energy.")
    gpus: GpuIndices = Field(
        default=None, description="GPUs whose energy counts, where they are not backend.device_ids: a server's."
    )
    carbon_g_per_kwh: FiniteFloat | None = Field(
        default=None, ge=0, le=MAX_G_PER_KWH, description="Null: no carbon is reported."
    )
    country_iso_code: str | None = Field(default=None, description="Told in results, beside the carbon.")
    region: str | None = Field(default=None, description="Likewise.")


class EnergyReporter(Value):
    """A file that results are written to, beside the run folder's own."""

    type: ReporterType = "csv"
    output_file: str = Field(min_length=1)


class EnergyConfig(Value):
    """All of it; the file is looked at as a whole before anything is loaded."""

    name: str | None = Field(default=None, min_length=1, max_length=100)
    output_dir: str | None = Field(default=None, min_length=1)
    backend: EnergyBackend
    scenario: EnergyScenario = Field(default_factory=EnergyScenario)
    metrics: EnergyMetrics = Field(default_factory=EnergyMetrics)
    reporter: tuple[EnergyReporter, ...] = ()

    @field_validator("reporter", mode="before")
    @classmethod
    def _wrap_single_reporter(cls, value: object) -> object:
        return [value] if isinstance(value, dict) else value if value is not None else ()

    @property
    def gpus(self) -> tuple[int, ...]:
        """Every GPU that is named, to compute on or to be metered."""
        return tuple(dict.fromkeys((*(self.backend.device_ids or ()), *(self.metrics.gpus or ()))))


if TYPE_CHECKING:
    ConfigProblem = tuple[KeyPath, str]

SERVER_ONLY_FIELDS = ("api_key_env", "endpoint", "request_timeout_s")
SERVER_SIDE_FIELDS = (
    "attn_implementation", "device", "device_map", "max_memory", "revision", "torch_dtype", "tp_plan", "tp_ranks",
    "trust_remote_code",
)  # fmt: skip
SPLIT_FIELDS = ("device_map", "max_memory")
"""How layers are spread over GPUs."""
SAMPLING_KWARGS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


def _changed_fields(part: Value, names: Iterable[str]) -> list[str]:
    """Return the fields that differ from their defaults."""
    fields = type(part).model_fields
    return [name for name in names if getattr(part, name) != fields[name].get_default(call_default_factory=True)]


def find_contradictions(config: EnergyConfig) -> Iterator[ConfigProblem]:
    """Give the key and a sentence for every contradiction."""
    backend, scenario = config.backend, config.scenario
    yield from _check_server_config(config) if backend.type == "openai" else _check_local_config(config)
    if not scenario.compile and "graphs" not in scenario.modes:
        yield ("scenario", "compile"), "compile is about graphs, and modes has none"
    try:  # settings of a generation must not be those that the rest of the scenario decides
        if backend.type == "openai":
            for tokens in scenario.output_tokens:
                RequestFormat.of(backend.model, scenario.generate_kwargs, tokens)
        else:
            parse_settings(json.dumps(scenario.generate_kwargs))
    except BadInput as error:
        yield ("scenario", "generate_kwargs"), str(error)
    files = [reporter.output_file for reporter in config.reporter]
    for number, file in enumerate(files):
        if file in files[:number]:
            yield ("reporter", number, "output_file"), f"{file} is written by two reporters"


def _check_server_config(config: EnergyConfig) -> Iterator[ConfigProblem]:
    backend, scenario = config.backend, config.scenario
    if (problem := _endpoint_problem(backend.endpoint)) is not None:
        yield ("backend", "endpoint"), problem
    for name in _changed_fields(backend, SERVER_SIDE_FIELDS):
        yield ("backend", name), f"{name} is decided where the server is started, and is not for type openai"
    if scenario.batch_sizes != (1,):
        yield ("scenario", "batch_sizes"), "a server batches by itself: use concurrency"
    for name in _changed_fields(scenario, ("modes", "compile")):
        yield ("scenario", name), f"{name} is about a model of type pytorch; a server decodes as it was started to"
    if None not in (config.metrics.gpus, backend.device_ids) and config.metrics.gpus != backend.device_ids:
        yield ("metrics", "gpus"), "metrics.gpus and backend.device_ids both say which GPUs the server has, and differ"


def _endpoint_problem(endpoint: str | None) -> str | None:
    """Return what is wrong with a server's address; null: nothing."""
    if endpoint is None:
        return "endpoint is missing: the server's address, as http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(endpoint)
        is_http = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        return f"{endpoint!r} is no address, as http://127.0.0.1:8000/v1"
    if "@" in parts.netloc or parts.query:
        alternative = "an environment variable, named by api_key_env"
        return f"endpoint has a key in it, which would be kept; put the key into {alternative}"
    return None


def _check_local_config(config: EnergyConfig) -> Iterator[ConfigProblem]:
    backend, scenario = config.backend, config.scenario
    for name in _changed_fields(backend, SERVER_ONLY_FIELDS):
        yield ("backend", name), f"{name} is about a server, and type is pytorch; a server is type openai"
    if scenario.concurrency != (1,):
        yield ("scenario", "concurrency"), "requests at once are for a server, type openai; here there are batch_sizes"
    if scenario.reasoning_settings and (scenario.prompts == RANDOM_PROMPTS or is_random(backend.model)):
        key = "reasoning_params" if scenario.reasoning_params else "reasoning"
        needs = "a file of prompts, and a model with a chat template"
        yield ("scenario", key), f"{key} takes effect where prompts are written for a model: it needs {needs}"
    if scenario.generate_kwargs.get("use_cache") is False and max(scenario.output_tokens) > 1:
        problem = "use_cache: false reads the prompt for every token: decoding is nothing apart"
        yield ("scenario", "generate_kwargs"), problem
    yield from _check_devices(config)
    yield from _check_tensor_parallel(backend)
    if is_random(backend.model):
        yield from _check_random_model(backend, scenario)


def _check_devices(config: EnergyConfig) -> Iterator[ConfigProblem]:
    backend, metrics = config.backend, config.metrics
    if backend.device == "cpu":
        if backend.device_ids is not None:
            where = "GPUs that are only metered are metrics.gpus"
            yield ("backend", "device_ids"), f"device_ids are GPUs to compute on, and device is cpu; {where}"
        for name in _changed_fields(backend, SPLIT_FIELDS):
            yield ("backend", name), f"{name} splits a model over GPUs, and device is cpu"
        return
    if metrics.gpus not in (None, backend.device_ids):
        counted = "energy is counted on the GPUs that compute, backend.device_ids"
        yield ("metrics", "gpus"), f"{counted}; metrics.gpus is for a server's, or with device cpu"
    ids = backend.device_ids or (0,)
    there = f"device_ids are {', '.join(map(str, ids))}"
    for part, gpu in backend.device_map.items() if isinstance(backend.device_map, dict) else ():
        if isinstance(gpu, int) and gpu not in ids:
            yield ("backend", "device_map", part), f"device_map has {part!r} on GPU {gpu}, and {there}"
    for gpu in backend.max_memory or ():
        if isinstance(gpu, int) and gpu not in ids:
            yield ("backend", "max_memory", str(gpu)), f"max_memory has GPU {gpu}, and {there}"


def _check_tensor_parallel(backend: EnergyBackend) -> Iterator[ConfigProblem]:
    if backend.tp_plan is None:
        if backend.tp_ranks is not None:
            yield ("backend", "tp_ranks"), "tp_ranks are those of a tp_plan, and there is none: tp_plan: auto"
        return
    if backend.device == "cpu":
        if backend.tp_ranks is None:
            yield ("backend", "tp_plan"), "tp_plan on a CPU needs tp_ranks, as tp_ranks: 2"
    elif backend.tp_ranks is not None:
        yield ("backend", "tp_ranks"), "tp_ranks are for device cpu; on GPUs every one of device_ids is a rank"
    elif len(backend.device_ids or ()) < 2:
        yield ("backend", "tp_plan"), "tp_plan splits each layer over GPUs, and needs device_ids with at least two"
    for name in _changed_fields(backend, SPLIT_FIELDS):
        yield ("backend", name), f"{name} places whole layers, and tp_plan splits each of them: keep one"


def _check_random_model(backend: EnergyBackend, scenario: EnergyScenario) -> Iterator[ConfigProblem]:
    try:
        context = model_shape(backend.model).context
    except BadInput as error:
        yield ("backend", "model"), str(error)
        return
    for name in _changed_fields(backend, ("revision", "trust_remote_code")):
        yield ("backend", name), f"{name} is about a model of a hub or a folder, and {backend.model} is neither"
    most = max(scenario.input_tokens) + max(scenario.output_tokens)
    if most > context and scenario.prompts == RANDOM_PROMPTS:
        long = f"{max(scenario.input_tokens)} tokens in and {max(scenario.output_tokens)} out are {most}"
        yield ("scenario", "input_tokens"), f"{long}, and the context of {backend.model} is {context}"


def find_ineffective_settings(config: EnergyConfig) -> Iterator[str]:
    """Give a sentence for every setting that has no effect here."""
    scenario, metrics = config.scenario, config.metrics
    if (metrics.country_iso_code or metrics.region) and metrics.carbon_g_per_kwh is None:
        location = " ".join(filter(None, (metrics.country_iso_code, metrics.region)))
        yield f"no carbon is reported: that of {location} is not guessed; metrics.carbon_g_per_kwh gives it in g/kWh"
    if not metrics.enabled:
        names = _changed_fields(metrics, ("gpus", "carbon_g_per_kwh"))
        without = f": {' and '.join(names)} say{'s' if len(names) == 1 else ''} nothing" if names else ""
        yield f"metrics.enabled is false, so that times are measured and no energy{without}"
    if scenario.reasoning is False and scenario.reasoning_params:
        yield "scenario.reasoning is false, so that reasoning_params are left out"
    settings = scenario.generate_kwargs
    sampling = [name for name in SAMPLING_KWARGS if name in settings]
    # a model of a hub may itself say that it samples
    samples = settings.get("do_sample", False if is_random(config.backend.model) else None)
    if config.backend.type == "pytorch" and sampling and samples is False:
        yield f"without do_sample: true the likeliest token is taken, and generate_kwargs.{sampling[0]} changes nothing"
    names = _changed_fields(scenario, ("text_column_name", "num_samples", "truncation"))
    if scenario.prompts == RANDOM_PROMPTS and names:
        yield f"scenario.prompts are random tokens, as many as asked for, to which {' and '.join(names)} cannot apply"
