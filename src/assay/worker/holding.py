"""A device between one part of a worker's work and the next: memory given back, and whether it still answers."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress


def give_back(device: str) -> None:
    """Give freed memory back to a device."""
    gc.collect()
    if _is_used(device):
        with suppress(Exception):  # a device that is lost says so in what follows
            sys.modules["torch"].cuda.empty_cache()


def is_lost(device: str) -> bool:
    """Return whether something that failed has left a device unusable for this process."""
    if not _is_used(device):
        return False
    try:
        sys.modules["torch"].cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _is_used(device: str) -> bool:
    return device.startswith("cuda") and "torch" in sys.modules
