"""The providers that come with Assay pass the kit that others are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.guardian import Guardian
from assay.hosts import kit
from tests.hosts.standins.benches import StandInBench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module", autouse=True)
def one_guardian() -> Iterator[None]:
    """Share one guardian: nothing here is killed."""
    with Guardian():
        yield


@pytest.mark.full
@pytest.mark.parametrize("check", kit.CHECKS, ids=kit.name_of)
@pytest.mark.parametrize("provider", ["runpod", "lambda"])
def test_every_provider_passes_the_kit(
    provider: str, check: Callable[[kit.ProviderBench], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(StandInBench(provider, monkeypatch))
