"""JSON Schemas of the files a run leaves behind, generated from the models and shipped with the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from assay.core.files import DIGEST, DIGEST_PATTERN, replace_atomically
from assay.core.page import Page
from assay.core.results import Findings, Record
from assay.core.values import Trial
from assay.machine.model import Machine
from assay.monitor.kernel_trace.report import TraceSummary
from assay.monitor.samples import RECORDING_LINE
from assay.store.records import Seal
from assay.store.run_folder import BlockDecision, StoredRunPlan

if TYPE_CHECKING:
    from assay.core.values import Value

FOLDER = Path(__file__).resolve().parents[1] / "schemas"
SEALED = frozenset({"decision", "plan", "record", "seal"})
"""Models stored with their digest as the last key."""
MODELS: dict[str, type[Value]] = {
    "decision": BlockDecision,
    "findings": Findings,
    "machine": Machine,
    "page": Page,
    "plan": StoredRunPlan,
    "record": Record,
    "seal": Seal,
    "trace": TraceSummary,
    "trial": Trial,
}


def generate() -> dict[str, str]:
    """Return the text of each schema by its file name."""
    texts: dict[str, str] = {}
    adapters: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(model) for name, model in MODELS.items()}
    for name, adapter in {**adapters, "monitor": RECORDING_LINE}.items():
        schema = adapter.json_schema(mode="serialization", by_alias=True)
        if name in SEALED:
            schema["properties"][DIGEST] = {"type": "string", "pattern": f"^{DIGEST_PATTERN}$", "title": "Digest"}
            schema["required"] = [*schema.get("required", ()), DIGEST]
        schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        texts[f"{name}.schema.json"] = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return texts


def main() -> int:
    """Write every schema into the package."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in generate().items():
        replace_atomically(FOLDER / name, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
