from __future__ import annotations

import pytest


@pytest.fixture
def cuda() -> str:
    """A GPU to run on; tests that ask for it also carry the mark ``gpu``."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA GPU here")
    return "cuda:0"
