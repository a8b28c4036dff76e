"""Tokens from a real server, ``transformers serve``, asked by a real worker in stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.values import Role, Staged, Subject
from assay.workloads.generation.params import Generation
from tests.running import quickly
from tests.workloads.transformers_server import TransformersServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.running import Measure

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersServer]:
    real = TransformersServer(tmp_path_factory.mktemp("served"))
    try:
        real.wait()
        yield real
    finally:
        real.close()


def asked(server: TransformersServer, **changes: object) -> Subject:
    told = {"model": server.model, "endpoint": server.url, "input_tokens": 32, "output_tokens": 6, "concurrency": 2}
    generation = Generation.model_validate({**told, "phase": "served", "request_timeout_s": 60.0, **changes})
    return Subject(workload="generate", impl="openai", params=generation.as_params())


def test_a_real_server_is_idle_then_under_load_and_a_model_it_has_not_is_left_out(
    server: TransformersServer, measure: Measure
) -> None:
    subjects = (asked(server, phase="idle"), asked(server), asked(server, model="no-such-model"))
    role = Role(name="model", subjects=subjects, devices=("cpu:0",))
    found = measure(role, mode=quickly(Staged, duration_s=60.0, timeout_s=60.0, stage_s=0.5, min_calls=2))
    assert (found.status, found.reason) == ("ok", None)
    idle, served, unknown = found.evidence[0].subjects
    assert idle.skipped is served.skipped is None
    assert f"pinned to '{server.model}'" in str(unknown.skipped)
    assert any("it refuses ignore_eos and min_tokens" in note.message for note in served.notes)
    series = {s.quantity: np.frombuffer(s.data, dtype=np.float64) for s in found.series if s.subject == 1}
    requests, tokens = series["requests"].sum(), series["output_tokens"].sum()
    assert requests > 0
    assert tokens == pytest.approx(6 * requests, abs=2 * 6)
    assert series["input_tokens"].sum() == pytest.approx(32 * requests, abs=2 * 32)
    assert series["errors"].sum() == series["short_requests"].sum() == 0
    assert len(series["first_token_us"]) == pytest.approx(requests, abs=2)
    most = 5 * requests + 10  # fewer where a busy server sent several tokens at once
    assert 0 < len(series["gap_us"]) <= most
    assert "requests" not in {s.quantity for s in found.series if s.subject == 0}
