from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workloads.openai_server import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A stand-in for a server that speaks OpenAI's protocol; it ends with the test."""
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def cuda() -> str:
    """A GPU to run on; tests that ask for it also carry the mark ``gpu``."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA GPU here")
    return "cuda:0"
