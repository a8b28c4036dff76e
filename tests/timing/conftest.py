"""What tests of the timer share: a clock that they turn, and a GPU where there is one."""

from __future__ import annotations

import pytest

from tests.timing.faking import VirtualTime


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """Time that passes only when an instrument samples."""
    made = VirtualTime()
    made.install(monkeypatch)
    return made


@pytest.fixture
def cuda() -> str:
    """A GPU to time on; tests that ask for it also carry the mark ``gpu``."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA GPU here")
    return "cuda:0"
