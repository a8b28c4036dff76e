"""What a model will take and where its parts will lie, told by a fresh process that loads none of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError
from assay.worker.asking import answer_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.values import Params
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.placement import Plan
    from assay.workloads.generation.sizes import Predicted


def ask(params: Params, device: str, uuids: Sequence[str] = ()) -> dict[str, Any]:
    """Return what is foreseen of a generation on a device of ours, among these GPUs.

    It is ``sizes`` (of the model), ``needs_bytes`` (with this batch), ``weights_bytes`` by place, and ``notes``; or
    ``refused``, why it cannot be; or ``error``, why nothing is known.
    """
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    request: dict[str, Any] = {"params": params, "device": device}
    return answer_of("assay.worker.foresee", request, environment=environment)


def foreseen(wish: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a wish."""
    from assay.workloads.generation.params import Generation

    generation = Generation.of(wish["params"])
    try:
        sizes, plan = _planned(generation, wish["device"])
    except AssayError as error:
        return {"refused": str(error), "exit_code": error.exit_code}
    return {
        "sizes": sizes.as_json(),
        "needs_bytes": sizes.needs_bytes(generation.batch, generation.input_tokens, generation.output_tokens),
        "weights_bytes": None if plan is None else plan.weights_bytes,
        "notes": [] if plan is None else list(plan.notes),
    }


def _planned(generation: Generation, device: str) -> tuple[Predicted, Plan | None]:
    """Return what a model takes, and where its parts would lie; null where ranks share every part."""
    from assay.workloads.generation.loading import emptied, planned_for

    empty, sizes, visible = emptied(generation, device)
    return sizes, None if generation.tp_plan else planned_for(generation, empty, sizes, visible)


def main() -> int:
    """Answer the wish on standard input with one line of JSON."""
    print(json.dumps(foreseen(json.load(sys.stdin))))  # noqa: T201 - the answer to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
