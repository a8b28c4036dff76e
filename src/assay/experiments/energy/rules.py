"""What parts of a configuration must not say together, and what they say that has no effect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from assay.core.errors import BadInput
from assay.experiments.energy.config import RANDOM_PROMPTS, Backend, Metrics, Scenario
from assay.workloads.generation.models import is_random, shape_of
from assay.workloads.generation.server.form import Form
from assay.workloads.generation.settings import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.experiments.energy.config import EnergyConfig
    from assay.experiments.file_lines import Steps

    Problem = tuple[Steps, str]

OF_A_SERVER = ("api_key_env", "endpoint", "request_timeout_s")
OF_THE_SERVER_ITSELF = (
    "attn_implementation", "device", "device_map", "max_memory", "revision", "torch_dtype", "tp_plan", "tp_ranks",
    "trust_remote_code",
)  # fmt: skip

OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


def contradictions(config: EnergyConfig) -> Iterator[Problem]:
    """Give the place and the sentence of everything that cannot be together."""
    backend, scenario = config.backend, config.scenario
    yield from _served(config) if backend.type == "openai" else _computed_here(config)
    if not scenario.compile and "graphs" not in scenario.modes:
        yield ("scenario", "compile"), "compile is about graphs, and modes has none"
    try:
        _settings(config)
    except BadInput as error:
        yield ("scenario", "generate_kwargs"), str(error)
    files = [reporter.output_file for reporter in config.reporter]
    for number, file in enumerate(files):
        if file in files[:number]:
            yield ("reporter", number, "output_file"), f"{file} is written by two reporters"


def _settings(config: EnergyConfig) -> None:
    """Make sure that settings of a generation are not those that the rest of the scenario decides."""
    settings = config.scenario.generate_kwargs
    if config.backend.type == "openai":
        for tokens in config.scenario.output_tokens:
            Form.of(config.backend.model, settings, tokens)
    else:
        parsed(json.dumps(settings))


def _served(config: EnergyConfig) -> Iterator[Problem]:
    backend, scenario = config.backend, config.scenario
    if backend.endpoint is None:
        yield ("backend", "endpoint"), "endpoint is missing: the server's address, as http://127.0.0.1:8000/v1"
    elif not _is_address(backend.endpoint):
        yield ("backend", "endpoint"), f"{backend.endpoint!r} is no address, as http://127.0.0.1:8000/v1"
    elif "@" in urlsplit(backend.endpoint).netloc or urlsplit(backend.endpoint).query:
        alternative = "an environment variable, named by api_key_env"
        yield (
            ("backend", "endpoint"),
            f"endpoint has a key in it, which would be kept; put the key into {alternative}",
        )
    for name in OF_THE_SERVER_ITSELF:
        if getattr(backend, name) != _default(Backend, name):
            yield ("backend", name), f"{name} is decided where the server is started, and is not for type openai"
    if scenario.batch_sizes != (1,):
        yield ("scenario", "batch_sizes"), "a server batches by itself: use concurrency"
    for name in ("modes", "compile"):
        if getattr(scenario, name) != _default(Scenario, name):
            yield ("scenario", name), f"{name} is about a model of type pytorch; a server decodes as it was started to"
    if None not in (config.metrics.gpus, backend.device_ids) and config.metrics.gpus != backend.device_ids:
        yield ("metrics", "gpus"), "metrics.gpus and backend.device_ids both say which GPUs the server has, and differ"


def _computed_here(config: EnergyConfig) -> Iterator[Problem]:
    backend, scenario = config.backend, config.scenario
    for name in OF_A_SERVER:
        if getattr(backend, name) != _default(Backend, name):
            yield ("backend", name), f"{name} is about a server, and type is pytorch; a server is type openai"
    if scenario.concurrency != (1,):
        yield ("scenario", "concurrency"), "requests at once are for a server, type openai; here there are batch_sizes"
    if scenario.reasoning_settings and (scenario.prompts == RANDOM_PROMPTS or is_random(backend.model)):
        field = "reasoning_params" if scenario.reasoning_params else "reasoning"
        needs = "a file of prompts, and a model with a chat template"
        yield ("scenario", field), f"{field} is told where prompts are written for a model: it needs {needs}"
    if scenario.generate_kwargs.get("use_cache") is False and max(scenario.output_tokens) > 1:
        yield (
            ("scenario", "generate_kwargs"),
            "use_cache: false reads the prompt for every token: decoding is nothing apart",
        )
    yield from _devices(config)
    yield from _tensor_parallel(backend)
    if is_random(backend.model):
        yield from _random_model(backend, scenario)


def _devices(config: EnergyConfig) -> Iterator[Problem]:
    backend, metrics = config.backend, config.metrics
    if backend.device == "cpu":
        if backend.device_ids is not None:
            where = "GPUs that are only metered are metrics.gpus"
            yield ("backend", "device_ids"), f"device_ids are GPUs to compute on, and device is cpu; {where}"
        for name in ("device_map", "max_memory"):
            if getattr(backend, name) != _default(Backend, name):
                yield ("backend", name), f"{name} parts a model over GPUs, and device is cpu"
        return
    if metrics.gpus not in (None, backend.device_ids):
        counted = "energy is counted on the GPUs that compute, backend.device_ids"
        yield ("metrics", "gpus"), f"{counted}; metrics.gpus is for a server's, or with device cpu"
    ids = backend.device_ids or (0,)
    mapped = backend.device_map.items() if isinstance(backend.device_map, dict) else ()
    for part, gpu in mapped:
        if isinstance(gpu, int) and gpu not in ids:
            there = _listed(ids)
            yield ("backend", "device_map", part), f"device_map has {part!r} on GPU {gpu}, and device_ids are {there}"
    for gpu in backend.max_memory or ():
        if isinstance(gpu, int) and gpu not in ids:
            yield ("backend", "max_memory", str(gpu)), f"max_memory has GPU {gpu}, and device_ids are {_listed(ids)}"


def _tensor_parallel(backend: Backend) -> Iterator[Problem]:
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
        yield ("backend", "tp_plan"), "tp_plan parts each layer over GPUs, and needs device_ids with at least two"
    for name in ("device_map", "max_memory"):
        if getattr(backend, name) != _default(Backend, name):
            yield ("backend", name), f"{name} places whole layers, and tp_plan parts each of them: keep one"


def _random_model(backend: Backend, scenario: Scenario) -> Iterator[Problem]:
    try:
        context = shape_of(backend.model).context
    except BadInput as error:
        yield ("backend", "model"), str(error)
        return
    for name in ("revision", "trust_remote_code"):
        if getattr(backend, name) != _default(Backend, name):
            yield ("backend", name), f"{name} is about a model of a hub or a folder, and {backend.model} is neither"
    most = max(scenario.input_tokens) + max(scenario.output_tokens)
    if most > context and scenario.prompts == RANDOM_PROMPTS:
        long = f"{max(scenario.input_tokens)} tokens in and {max(scenario.output_tokens)} out are {most}"
        yield ("scenario", "input_tokens"), f"{long}, and the context of {backend.model} is {context}"


def remarks(config: EnergyConfig) -> Iterator[str]:
    """Give a sentence for everything that is said and has no effect here."""
    scenario, metrics = config.scenario, config.metrics
    if (metrics.country_iso_code or metrics.region) and metrics.carbon_g_per_kwh is None:
        location = " ".join(filter(None, (metrics.country_iso_code, metrics.region)))
        yield f"no carbon is told: that of {location} is not guessed, and metrics.carbon_g_per_kwh gives it in g/kWh"
    if not metrics.enabled:
        names_set = [name for name in ("gpus", "carbon_g_per_kwh") if getattr(metrics, name) != _default(Metrics, name)]
        without = f": {' and '.join(names_set)} say{'s' if len(names_set) == 1 else ''} nothing" if names_set else ""
        yield f"metrics.enabled is false, so that times are measured and no energy{without}"
    if scenario.reasoning is False and scenario.reasoning_params:
        yield "scenario.reasoning is false, so that reasoning_params are left out"
    settings = scenario.generate_kwargs
    sampling = [name for name in OF_SAMPLING if name in settings]
    samples = settings.get("do_sample", None if not is_random(config.backend.model) else False)
    if (
        config.backend.type == "pytorch" and sampling and samples is False
    ):  # a model of a hub may say itself that it samples
        yield f"without do_sample: true the likeliest token is taken, and generate_kwargs.{sampling[0]} changes nothing"
    names = ("text_column_name", "num_samples", "truncation")
    names_set = [name for name in names if getattr(scenario, name) != _default(Scenario, name)]
    if scenario.prompts == RANDOM_PROMPTS and names_set:
        ignored = " and ".join(names_set)
        yield f"scenario.prompts are random tokens, as many as asked for, to which {ignored} cannot apply"


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _default(model: type[Any], name: str) -> Any:
    return model.model_fields[name].get_default(call_default_factory=True)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
