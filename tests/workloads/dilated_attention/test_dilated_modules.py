from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput
from assay.workloads import dilated_attention as room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group whose only rank is this process."""
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def drawn(heads: int = 4) -> list[Any]:
    import torch

    return [torch.randn(1, 16, count, 8, dtype=torch.float64) for count in (4, heads, heads)]


def test_the_room_says_what_is_public() -> None:
    assert sorted(room.__all__) == room.__all__
    assert all(getattr(room, name) for name in room.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        room.nothing  # noqa: B018


def test_only_modules_import_pytorch_as_they_are_loaded() -> None:
    program = (
        "import sys, assay.workloads.dilated_attention as room\n"
        "from assay.workloads.dilated_attention import functional, problem, schedule, verify\n"
        "print('torch' in sys.modules, room.dilated_attention.__name__, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["False", "dilated_attention", "False"]


def test_a_module_is_the_function_with_options() -> None:
    q, k, v = drawn(2)
    module = room.DilatedAttention(32, 4, (4, 16), (1, 2), num_kv_heads=2, causal=True, offset="blocks")
    right = room.dilated_attention(q, k, v, (4, 16), (1, 2), causal=True, offset="blocks")
    assert module(q, k, v).equal(right)
    assert not module.state_dict()
    assert "segment_lengths=(4, 16), dilation_rates=(1, 2), causal=True" in repr(module)


def test_a_module_has_the_usual_defaults() -> None:
    module = room.DilatedAttention()
    assert (module.heads.queries, module.head_dim) == (12, 64)
    assert module.options["segment_lengths"] == (2048, 4096, 8192)
    assert room.DilatedAttention(use_flash_attention=False).options["backend"] == "math"


@pytest.mark.usefixtures("alone")
def test_a_ring_of_one_is_the_attention_of_one_device_and_moves_nothing() -> None:
    q, k, v = drawn()
    module = room.RingDilatedAttention(32, 4, (4, 16), (1, 2), ring_size=1, causal=True)
    assert module(q, k, v).equal(room.DilatedAttention(32, 4, (4, 16), (1, 2), causal=True)(q, k, v))
    assert module.traffic == room.Traffic()
    with pytest.raises(BadInput, match=r"^A world of 1 ranks is not divisible into rings of 2\.$"):
        room.RingDilatedAttention(ring_size=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"embed_dim": 30, "num_heads": 4}, r"^An embedding of 30 is not divisible among 4 heads\.$"),
        ({"dropout": 0.1}, r"^Dropout of 0\.1 is refused"),
        ({"segment_lengths": (4,)}, r"^There are 1 segment lengths but 3 dilation rates"),
        ({"num_kv_heads": 5}, r"^12 query heads cannot share 5 key heads evenly\.$"),
    ],
)
def test_a_module_that_cannot_be_is_refused_as_it_is_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        room.DilatedAttention(**options)


def test_tensors_of_other_heads_are_refused() -> None:
    q, k, v = drawn(2)
    with pytest.raises(BadInput, match=r"^k has shape \(1, 16, 2, 8\), but its heads are 4 of 8\.$"):
        room.DilatedAttention(32, 4, (4, 16), (1, 2))(q, k, v)
