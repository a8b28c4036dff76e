"""Modal passes the checks that every provider of rented machines must pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.hosts import kit

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.standins.modal.server import ModalStandIn

pytestmark = pytest.mark.full


@pytest.mark.parametrize("check", kit.CHECKS, ids=kit.name_of)
def test_modal_gets_right_what_every_provider_must(
    check: Callable[[kit.ProviderBench], None], modal_stand_in: ModalStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.hosts.standins.modal.bench import ModalBench

    check(ModalBench(modal_stand_in, monkeypatch))
