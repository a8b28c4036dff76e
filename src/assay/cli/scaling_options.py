"""The shape of the attention whose scaling is measured or predicted.

Flags that the verbs of ``assay scaling`` share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from assay.cli.params import SIZE, WHAT, ListOption, grouped
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.values import Subject

FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")

NUMBER = r"[+-]?\d+"
WORKLOAD = "dilated_attention"
SEQUENCES = {"cuda": (16384, 32768, 65536), "cpu": (2048,)}
"""Lengths that are asked about unless told, by kind of device."""


def shape_options(function: FunctionT) -> FunctionT:
    """Add the options of the shape; what is not given is as the workload has it on the device."""
    return grouped(WHAT, *_OPTIONS)(function)


_OPTIONS = (
    click.option("--batch-size", type=SIZE, envvar="BATCH_SIZE", help="Sequences per ring.  [default: 2; 1 on a CPU]"),
    click.option(
        "--seq-lengths",
        cls=ListOption,
        item=NUMBER,
        envvar="SEQ_LENGTHS",
        metavar="N...",
        help="Sequence lengths.  [default: 16384 32768 65536]",
    ),
    click.option("--embed-dim", type=SIZE, envvar="EMBED_DIM", help="Embedding dimension.  [default: 768]"),
    click.option("--num-heads", type=SIZE, envvar="NUM_HEADS", help="Query heads.  [default: 12]"),
    click.option("--num-kv-heads", type=SIZE, help="Key-value heads.  [default: --num-heads]"),
    click.option(
        "--segment-lengths",
        cls=ListOption,
        item=NUMBER,
        metavar="W...",
        help="Segment lengths.  [default: 2048 4096 8192]",
    ),
    click.option(
        "--dilation-rates", cls=ListOption, item=NUMBER, metavar="R...", help="Dilation rates.  [default: 1 2 4]"
    ),
    click.option("--dtype", metavar="DTYPE", help="Data type.  [default: float16]"),
    click.option("--causal", is_flag=True, help="Use a causal mask."),
    click.option("--offset", metavar="RULE", help="Position rule: modulo or blocks."),
    click.option("--backend", metavar="NAME", help="Attention backend.  [default: auto]"),
    click.option("--no-flash-attention", "no_flash", is_flag=True, hidden=True),
)


def attention_subject(flags: Mapping[str, Any], kind: str) -> Subject:
    """Return the attention that the flags mean on a kind of device: alone, its longest sequence's rules looked at."""
    from assay.workloads import registry

    defaults = registry.find_workload(WORKLOAD, "torch").defaults(kind)
    heads = flags["num_heads"] or int(str(defaults["heads"]))
    chosen = {
        "batch": flags["batch_size"],
        "sequence": max(sequence_lengths(flags, kind)),
        "heads": flags["num_heads"],
        "key_heads": flags["num_kv_heads"] or heads,
        "dim": head_dim(flags, heads, int(str(defaults["heads"])) * int(str(defaults["dim"]))),
        "segments": ",".join(flags["segment_lengths"]) or None,
        "rates": ",".join(flags["dilation_rates"]) or None,
        "dtype": flags["dtype"],
        "causal": flags["causal"] or None,
        "offset": flags["offset"],
        "backend": backend(flags),
    }
    words = {name: str(value).lower() if name == "causal" else str(value) for name, value in chosen.items()}
    params = {name: words[name] for name, value in chosen.items() if value is not None}
    return registry.resolve_subject(f"{WORKLOAD}@torch", device_kind=kind, explicit=params)


def sequence_lengths(flags: Mapping[str, Any], kind: str) -> tuple[int, ...]:
    """Return the lengths that are asked about, each once, in order."""
    return whole_numbers("--seq-lengths", flags["seq_lengths"]) or SEQUENCES[kind]


def whole_numbers(option: str, words: tuple[str, ...]) -> tuple[int, ...]:
    """Return whole numbers of at least 1, each once, in order."""
    numbers: dict[int, None] = {}
    for word in words:
        try:
            number = int(word)
        except ValueError:
            number = 0
        if number < 1:
            raise BadInput(f"{option} takes whole numbers of at least 1, not {word!r}.")
        numbers[number] = None
    return tuple(sorted(numbers))


def head_dim(flags: Mapping[str, Any], heads: int, embed_dim: int) -> int:
    """Return the elements of a head."""
    wide = flags["embed_dim"] or embed_dim
    if wide % heads:
        raise BadInput(f"--embed-dim {wide} must be divisible by --num-heads {heads}.")
    return int(wide // heads)


def backend(flags: Mapping[str, Any]) -> str | None:
    """Return what computes blocks, where it is told."""
    if flags["no_flash"] and flags["backend"] not in {None, "math"}:
        raise BadInput(
            f"--no-flash-attention means --backend math, which excludes --backend {flags['backend']}; give one."
        )
    return "math" if flags["no_flash"] else flags["backend"]
