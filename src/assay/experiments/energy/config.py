"""What ``assay energy run`` is told: backend, scenario, metrics, reporters, as its YAML names them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from assay.core.values import Value

DeviceMapName = Literal["auto", "balanced", "balanced_low_0", "sequential"]
Mode = Literal["eager", "graphs"]
ReporterType = Literal["csv", "json", "markdown", "html", "ai_energy_score"]


class Backend(Value):
    """Who makes the tokens: a model in a process of ours, or a server that speaks OpenAI's protocol."""

    type: Literal["pytorch", "openai"]
    model: str = Field(min_length=1, description="A hub's id, a folder, or random:llama-1b and the like.")
    revision: str | None = None
    trust_remote_code: bool = False
    device: Literal["auto", "cuda", "cpu"] = Field(default="auto", description="auto: GPUs where there are any.")
    device_ids: tuple[int, ...] | None = Field(
        default=None, description="GPUs by their NVML number; null: GPU 0 (pytorch), or none that is metered (openai)."
    )
    device_map: DeviceMapName | dict[str, int | str] = "auto"
    max_memory: dict[int | str, int | str] | None = Field(
        default=None, description="By GPU number or cpu: bytes, or text as 20GB or 18GiB."
    )
    torch_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    attn_implementation: str | None = None
    tp_plan: Literal["auto"] | None = Field(default=None, description="auto: tensor parallel, one rank per GPU.")
    endpoint: str | None = Field(default=None, description="Of an OpenAI-compatible server: http://127.0.0.1:8000/v1.")
    api_key_env: str | None = Field(default=None, description="The variable that holds the server's key.")
    request_timeout_s: float = Field(default=120.0, gt=0, description="Without a token for so long, a server stalls.")

    @model_validator(mode="after")
    def _a_server_has_an_address(self) -> Self:
        if self.type == "openai" and not self.endpoint:
            raise ValueError("backend.endpoint is missing: the address of the server, as http://127.0.0.1:8000/v1")
        return self


class Scenario(Value):
    """What is asked of it: prompts, sizes, how often, how long."""

    prompts: str = Field(default="random", description="random: seeded random token ids; or a file, or a data set.")
    text_column_name: str = "text"
    num_samples: int | None = Field(default=None, ge=1, description="Only so many of the prompts.")
    truncation: bool = Field(
        default=False, description="Cut prompts to the input length; else they are refused."
    )
    batch_sizes: tuple[int, ...] = Field(default=(1,), min_length=1)
    input_tokens: tuple[int, ...] = Field(default=(512,), min_length=1)
    output_tokens: tuple[int, ...] = Field(default=(128,), min_length=1)
    concurrency: tuple[int, ...] = Field(default=(1,), min_length=1, description="Requests in flight, of a server.")
    modes: tuple[Mode, ...] = Field(default=("eager",), min_length=1)
    compile: bool = Field(default=True, description="In graphs: the layers' kernels are fused by torch.compile first.")
    warmup: int = Field(default=1, ge=0, description="Calls before each stage is measured.")
    repeats: int = Field(default=3, ge=1, description="Processes started afresh: an interval rests on these.")
    window_s: float | None = Field(default=None, gt=0, description="Measured per stage; null: as the sensor needs.")
    precision: float = Field(default=0.03, gt=0, lt=1, description="Wider intervals of J/token are measured longer.")
    generate_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    reasoning: bool | None = None
    reasoning_params: dict[str, JsonValue] = Field(default_factory=dict)
    seed: int = 0

    @field_validator("batch_sizes", "input_tokens", "output_tokens", "concurrency")
    @classmethod
    def _sizes_are_positive(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in sizes) or len(set(sizes)) != len(sizes):
            raise ValueError("sizes are at least 1, and each is given once")
        return sizes


class Metrics(Value):
    """What is metered beside the tokens."""

    enabled: bool = Field(default=True, description="False: times alone, and no energy.")
    gpus: tuple[int, ...] | None = Field(
        default=None, description="GPUs whose energy counts, where they are not backend.device_ids: a server's."
    )
    carbon_g_per_kwh: float | None = Field(default=None, ge=0, description="Null: no carbon is told.")
    country_iso_code: str | None = None
    region: str | None = None


class Reporter(Value):
    """A file that results are written to, beside the run folder's own."""

    type: ReporterType = "csv"
    output_file: str


class EnergyConfig(Value):
    """All of it; the file is looked at as a whole before anything is loaded."""

    name: str | None = None
    output_dir: str | None = None
    backend: Backend
    scenario: Scenario = Field(default_factory=Scenario)
    metrics: Metrics = Field(default_factory=Metrics)
    reporter: tuple[Reporter, ...] = ()
