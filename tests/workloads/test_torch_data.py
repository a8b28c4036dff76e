from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from assay.core.errors import BadInput
from assay.workloads import numpy_support, torch_support
from assay.workloads.torch_support import TORCH_DTYPES


@pytest.fixture
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every tensor drawn where it will be, in several parts."""
    monkeypatch.setattr(torch_support, "MOST_FROM_NUMPY", 0)
    monkeypatch.setattr(torch_support, "_ELEMENTS_PER_DRAW", 1000)


def draw(shape: tuple[int, ...] = (50, 81), dtype: str = "float64", seed: int = 1, **options: Any) -> Any:
    return torch_support.draw_tensor(options.pop("distribution", "normal"), shape, dtype, seed, where="cpu", **options)


@pytest.mark.parametrize("distribution", numpy_support.DISTRIBUTIONS)
def test_small_tensors_are_those_of_every_other_implementation(distribution: str) -> None:
    expected = numpy_support.draw_array(distribution, (3, 5), "float32", 7, stream=2)
    np.testing.assert_array_equal(draw((3, 5), "float32", 7, stream=2, distribution=distribution).numpy(), expected)


@pytest.mark.usefixtures("on_the_device")
def test_one_seed_draws_the_same_on_the_device_and_another_seed_or_stream_does_not() -> None:
    here = draw()
    assert here.equal(draw())
    assert not here.equal(draw(seed=2))
    assert not here.equal(draw(stream=1))
    assert here.unique().numel() == here.numel()


@pytest.mark.usefixtures("on_the_device")
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_one_seed_means_the_same_data_in_every_precision(dtype: str) -> None:
    import torch

    kind = getattr(torch, dtype)
    assert draw(dtype=dtype).dtype == kind
    assert draw(dtype=dtype).equal(draw().to(kind))


@pytest.mark.usefixtures("on_the_device")
def test_the_distributions_drawn_on_the_device_are_what_their_names_say() -> None:
    normal, uniform = draw((20_000,)), draw((20_000,), distribution="uniform")
    assert abs(float(normal.mean())) < 0.05
    assert float(normal.std()) == pytest.approx(1, abs=0.05)
    assert abs(float(uniform.mean())) < 0.05
    assert -1 <= float(uniform.min()) < -0.99 < 0.99 < float(uniform.max()) <= 1
    assert not draw(distribution="zeros").any()


@pytest.mark.usefixtures("on_the_device")
def test_bad_distributions_and_seeds_are_refused_there_too() -> None:
    with pytest.raises(BadInput, match="distribution is one of normal, uniform, zeros, not 'gauss'"):
        draw(distribution="gauss")
    with pytest.raises(BadInput, match="seed is zero or more, not -1"):
        draw(seed=-1)
