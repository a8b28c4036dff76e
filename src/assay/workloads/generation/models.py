"""Models by name: from the hub, from a folder, or ``random:NAME``, a known shape with random weights.

This module loads their configuration, tokenizer and weight dtype; a one-sentence error explains why a model cannot be
loaded. A random model does exactly the computation and memory traffic of the real one, and needs no network.
``random:llama-8b?layers=4`` has fewer layers.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies

from assay.core.errors import AssayError, BadInput, MachineCannot, suggest_nearest
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ModelConfig: TypeAlias = Any  # a ``transformers.PreTrainedConfig``; the type checker does not see transformers

RANDOM = "random:"

_LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip

_FAMILY_OVERRIDES: Mapping[str, Mapping[str, object]] = {"Mistral": {"sliding_window": None}}
"""Overrides of defaults of a family's configuration class that differ from the published model."""


@dataclass(frozen=True)
class ModelShape:
    """The shape of a random model: sizes of a transformers configuration, under short names."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    family: str = "Llama"
    tied: bool = False
    eps: float = 1e-5
    rope: Mapping[str, object] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})

    def config(self) -> ModelConfig:
        """Return the shape as its family's configuration class."""
        return getattr(import_transformers(), f"{self.family}Config")(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.ffn,
            vocab_size=self.vocab,
            max_position_embeddings=self.context,
            tie_word_embeddings=self.tied,
            rms_norm_eps=self.eps,
            rope_parameters=dict(self.rope),
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
            **_FAMILY_OVERRIDES.get(self.family, {}),
        )


_THETA_1M = {"rope_type": "default", "rope_theta": 1000000.0}
SHAPES: Mapping[str, ModelShape] = {
    "llama-tiny": ModelShape(2, 64, 4, 2, 128, 256, 2048),
    "llama-160m": ModelShape(12, 768, 12, 12, 3072, 32000, 2048, eps=1e-6),
    "llama-1b": ModelShape(16, 2048, 32, 8, 8192, 128256, 131072, tied=True, rope={**_LLAMA_3, "factor": 32.0}),
    "llama-3b": ModelShape(28, 3072, 24, 8, 8192, 128256, 131072, tied=True, rope={**_LLAMA_3, "factor": 32.0}),
    "llama-8b": ModelShape(32, 4096, 32, 8, 14336, 128256, 131072, rope=_LLAMA_3),
    "llama-70b": ModelShape(80, 8192, 64, 8, 28672, 128256, 131072, rope=_LLAMA_3),
    "mistral-7b": ModelShape(32, 4096, 32, 8, 14336, 32768, 32768, family="Mistral", rope=_THETA_1M),
    "qwen2-0.5b": ModelShape(24, 896, 14, 2, 4864, 151936, 32768, family="Qwen2", tied=True, eps=1e-6, rope=_THETA_1M),
    "qwen2-7b": ModelShape(28, 3584, 28, 4, 18944, 152064, 32768, family="Qwen2", eps=1e-6, rope=_THETA_1M),
}
"""Shapes as published: Llama 3.2 1B and 3B, Llama 3.1 8B and 70B, Mistral 7B v0.3, Qwen2.5 0.5B and 7B."""

CHANGEABLE = {
    "layers": 1000, "hidden": 1 << 20, "heads": 1 << 16, "kv_heads": 1 << 16, "ffn": 1 << 22, "vocab": 1 << 24,
    "context": 1 << 24,
}  # fmt: skip
"""Sizes that may be changed after a question mark, and their limits."""


def import_transformers() -> Any:
    """Return the module ``transformers``, with progress bars and advice disabled; raise if it is missing."""
    for name, value in (
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)
    import_torch()
    try:
        import accelerate  # noqa: F401
        import transformers
    except ImportError as error:
        raise MachineCannot(
            f"Models need transformers and accelerate, which cannot be imported here ({error}); "
            "they come with gpu-assay[energy]."
        ) from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for name in ("accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return transformers


def is_random(model: str) -> bool:
    """Return whether a model's weights are random."""
    return model.startswith(RANDOM)


def model_shape(model: str) -> ModelShape:
    """Return the shape of ``random:NAME`` or ``random:NAME?layers=4&context=4096``."""
    name, _, changes = model.removeprefix(RANDOM).partition("?")
    if name not in SHAPES:
        raise BadInput(
            f"There is no random model {name!r}.{suggest_nearest(name, SHAPES)} There are {', '.join(SHAPES)}."
        )
    changed: dict[str, Any] = dict(vars(SHAPES[name]))
    for change in filter(None, changes.split("&")):
        key, _, text = change.partition("=")
        if key not in CHANGEABLE:
            raise BadInput(f"{model}: {key!r} of a random model cannot be changed.{suggest_nearest(key, CHANGEABLE)}")
        if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= CHANGEABLE[key]:
            raise BadInput(f"{model}: {key} is a whole number from 1 to {CHANGEABLE[key]}, not {text!r}.")
        changed[key] = int(text)
    shape = ModelShape(**changed)
    if shape.hidden % shape.heads or shape.heads % shape.kv_heads or (shape.hidden // shape.heads) % 2:
        raise BadInput(f"{model}: hidden is a multiple of heads, each of an even size, and heads is one of kv_heads.")
    return shape


DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
AUTO_DTYPE = "auto"


def resolve_dtype(requested: str, config: ModelConfig, kind: str) -> str:
    """Return the name of the weights' dtype on a kind of device, ``cpu`` or ``cuda``.

    ``auto`` is the checkpoint's dtype; random weights are bfloat16 on a GPU and float32 on a CPU.
    """
    own, dtypes = getattr(config, "dtype", None), ", ".join(DTYPE_BYTES)
    if requested != AUTO_DTYPE:
        if requested not in DTYPE_BYTES:
            near = suggest_nearest(requested, DTYPE_BYTES)
            raise BadInput(f"{requested!r} is no type of weights: {AUTO_DTYPE}, {dtypes}.{near}")
        return requested
    if own is None:
        return "float32" if kind == "cpu" else "bfloat16"
    name = str(own).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise BadInput(f"The model's own type is {name}; give backend.torch_dtype as one of {dtypes}.")
    return name


def usable_dtype(name: str, where: str) -> Any:
    """Return PyTorch's dtype of a name; refuse one that the device ``where`` only emulates or does not support."""
    torch = import_torch()
    dtype = getattr(torch, name)
    if where != "cpu" and name == "bfloat16":
        with torch.cuda.device(where):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                gpu = torch.cuda.get_device_name(where)
                raise MachineCannot(f"{gpu} does not compute in bfloat16; give backend.torch_dtype as float16.")
    try:
        one = torch.ones(1, 1, 8, 8, dtype=dtype, device=where)
        torch.nn.functional.scaled_dot_product_attention(one @ one, one, one).softmax(-1).sum().item()
    except RuntimeError as error:
        reason = first_line(str(error))
        raise MachineCannot(
            f"{where} does not compute in {name} ({reason}); give another backend.torch_dtype."
        ) from error
    return dtype


ALTERNATIVE_HINT = "give a folder that holds it, or random:llama-1b and the like, whose weights are random"
_MISSING_MESSAGES = ("couldn't connect", "can't load", "does not appear to have a file", "cached files")


def load_error(model: str, revision: str, error: Exception) -> AssayError:
    """Return the error for a model of the hub or of a folder that could not be loaded."""
    from huggingface_hub import errors, is_offline_mode

    if isinstance(error, AssayError):
        return error
    of = f"{model}{f' at revision {revision}' if revision else ''}"
    causes = list(error_chain(error))

    def is_hub_error(kind: type[Exception]) -> bool:
        return any(isinstance(cause, kind) for cause in causes)

    if is_hub_error(errors.HFValidationError):
        return BadInput(f"{of!r} is neither a folder nor a name of the hub, which is written OWNER/NAME.")
    if "trust_remote_code" in str(error):  # transformers raises a plain ValueError
        reason = (
            "brings its own code, which is not run unless backend.trust_remote_code is true: "
            "that code can do anything that you can"
        )
    elif is_hub_error(errors.GatedRepoError):
        reason = "is gated: its owner must let you in, and you must log in to the hub"
    elif is_hub_error(errors.RevisionNotFoundError):
        return MachineCannot(f"The hub does not have the model {of}: there is no such revision.")
    elif is_hub_error(errors.RepositoryNotFoundError):
        return MachineCannot(f"The hub has no model {of}, or none that you may see; {ALTERNATIVE_HINT}.")
    elif any(map(_is_missing, causes)):
        why = "the hub is not asked, as HF_HUB_OFFLINE says" if is_offline_mode() else "the hub cannot be reached"
        reason = f"is not in the cache here, and {why}; {ALTERNATIVE_HINT}"
    else:
        reason = f"cannot be read: {first_line(str(error)) or type(error).__name__}"
    return MachineCannot(f"The model {of} {reason}.")


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes and contexts."""
    visited: list[BaseException] = []
    while error is not None and error not in visited:
        visited.append(error)
        yield error
        error = error.__cause__ or error.__context__


def first_line(text: str, most: int = 200) -> str:
    """Return the first line of a message that is not blank, without a full stop."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:most].rstrip(".") if lines else ""


def _is_missing(cause: BaseException) -> bool:
    """Return whether a model is not in the cache and cannot be fetched; transformers reports that in words only."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    if isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled | ConnectionError | TimeoutError):
        return True
    return isinstance(cause, OSError) and any(text in str(cause).lower() for text in _MISSING_MESSAGES)


def load_config(model: str, revision: str = "", *, trust_remote_code: bool = False) -> ModelConfig:
    """Return the configuration of a model; one in the hub's cache needs no network.

    Raises:
        BadInput: There is no such random model or folder, or the name is not valid.
        MachineCannot: The hub does not have it or cannot be reached, or its code is not trusted.
    """
    if is_random(model):
        return model_shape(model).config()
    source = source_arguments(model, revision, trust_remote_code=trust_remote_code)
    try:
        return import_transformers().AutoConfig.from_pretrained(**source)
    except Exception as error:
        raise load_error(model, revision, error) from error


def source_arguments(model: str, revision: str, *, trust_remote_code: bool) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that say where a model comes from."""
    import_transformers()
    folder = local_folder(model)
    return {
        "pretrained_model_name_or_path": str(folder or model),
        "revision": revision or None,
        "trust_remote_code": trust_remote_code,
        "local_files_only": folder is not None or is_offline(),
    }


def local_folder(model: str) -> Path | None:
    """Return the folder of a model, or null for a name of the hub; refuse a path without a model."""
    path = Path(model).expanduser()
    looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1 or path.is_dir()
    if not looks_local:
        return None
    if not path.exists():
        raise BadInput(f"The model's folder {model} does not exist.")
    if not path.is_dir():
        raise BadInput(f"{model} is a file; a model is a folder with a config.json and its weights.")
    if not (path / "config.json").is_file():
        raise BadInput(f"The folder {model} has no config.json, so that it is not a model's.")
    return path


def load_tokenizer(model: str, revision: str = "", *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a model; null where it has none."""
    if is_random(model):
        return None
    source = source_arguments(model, revision, trust_remote_code=trust_remote_code)
    try:
        return import_transformers().AutoTokenizer.from_pretrained(**source)
    except (OSError, ValueError, KeyError, ImportError):
        return None


def is_offline() -> bool:
    """Return whether the hub must not be used, by the user's setting, or cannot be reached."""
    from huggingface_hub import is_offline_mode

    return bool(is_offline_mode()) or _hub_unreachable()


@cache
def _hub_unreachable() -> bool:
    """Return whether the hub's host name does not resolve, which avoids retries of half a minute."""
    from huggingface_hub.constants import ENDPOINT

    if getproxies():
        return False
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
    except OSError:
        return True
    return False
