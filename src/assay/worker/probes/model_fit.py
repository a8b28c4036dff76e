"""Predict how much memory a model needs and where its parts are placed, without loading its weights."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError
from assay.worker.probes import query_subprocess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import ModelSizes, PlacementPlan


def query_model_fit(params: Params, device: str, uuids: Sequence[str] = ()) -> dict[str, Any]:
    """Return the predicted memory of a generation on a device, among these GPUs.

    It is ``sizes`` (of the model), ``needs_bytes`` (with this batch), ``weights_bytes`` by place, and ``notes``; or
    ``refused``, why it is impossible; or ``error``, why nothing is known.
    """
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    request: dict[str, Any] = {"params": params, "device": device}
    return query_subprocess("assay.worker.probes.model_fit", request, environment=environment)


def predict_model_fit(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to a request."""
    from assay.workloads.generation.params import Generation

    generation = Generation.model_validate(request["params"])
    try:
        sizes, plan = _plan_model(generation, request["device"])
    except AssayError as error:
        return {"refused": str(error), "exit_code": error.exit_code}
    return {
        "sizes": sizes.as_json(),
        "needs_bytes": sizes.needs_bytes(generation.batch, generation.input_tokens, generation.output_tokens),
        "weights_bytes": None if plan is None else plan.weights_bytes,
        "notes": [] if plan is None else [note.message for note in plan.notes],
    }


def _plan_model(generation: Generation, device: str) -> tuple[ModelSizes, PlacementPlan | None]:
    """Return a model's sizes and its placement plan; the plan is null if ranks share every part."""
    from assay.workloads.generation.loading import load_empty_model, plan_for_free_memory

    empty, sizes, visible = load_empty_model(generation, device)
    return sizes, None if generation.tp_plan else plan_for_free_memory(generation, empty, sizes, visible)


def main() -> int:
    """Answer the request on standard input with one line of JSON."""
    print(json.dumps(predict_model_fit(json.load(sys.stdin))))  # noqa: T201 - the reply to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
