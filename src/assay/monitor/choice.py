"""Which GPUs to watch: all that there are, or those that are named, by number or by UUID.

What CUDA_VISIBLE_DEVICES hides can be watched as well, and so can a GPU in MIG mode: sensors belong to whole GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.monitor.lines import WatchedGpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Origin
    from assay.machine.model import Gpu
    from assay.machine.vendor import View


def choose(view: View, named: Sequence[int | str] | None) -> tuple[WatchedGpu, ...]:
    """Return the GPUs that are meant; with nothing said, all that there are, be it none.

    Raises:
        BadInput: A name makes no sense, fits several, or comes twice.
        MachineCannot: There is no such GPU, or it is lost.
    """
    chosen = view.gpus if named is None else tuple(_named(view, word) for word in named)
    twice = {gpu.index for gpu in chosen if sum(other.uuid == gpu.uuid for other in chosen) > 1}
    if twice:
        raise BadInput(f"The same GPU is named twice: {', '.join(map(str, sorted(twice)))}.")
    return tuple(map(watched, chosen))


def watched(gpu: Gpu) -> WatchedGpu:
    """Return what a recording says of a GPU."""
    return WatchedGpu(
        index=gpu.index, uuid=gpu.uuid, name=gpu.name, memory_mib=gpu.memory_mib, power_limit_w=gpu.power_limit_w
    )


def origin_of(view: View) -> Origin:
    """Return whether the driver is one: the fake of the tests names itself."""
    return "fake" if view.driver is not None and "fake" in view.driver else "real"


def _named(view: View, word: int | str) -> Gpu:
    text = str(word).strip()
    for lost in view.lost:
        if text == str(lost.index):
            raise MachineCannot(f"GPU {lost.index} cannot be reached: {lost.reason}.")
    if text.startswith("GPU-"):
        return _by_uuid(view, text)
    if not text.isdecimal():
        raise BadInput(f"{text!r} is not a GPU's number; write 0, 1 or UUIDs as nvidia-smi -L shows them.")
    for gpu in view.gpus:
        if text == str(gpu.index):
            return gpu
    if not view.gpus:
        raise MachineCannot(f"There is no GPU {text} here: {view.note or 'no GPU is to be seen'}.")
    raise MachineCannot(f"There is no GPU {text} here; there are {', '.join(str(gpu.index) for gpu in view.gpus)}.")


def _by_uuid(view: View, text: str) -> Gpu:
    fits = [gpu for gpu in view.gpus if gpu.uuid.startswith(text)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise BadInput(f"{text} fits several GPUs: {', '.join(gpu.uuid for gpu in fits)}; write more of it.")
    raise MachineCannot(f"There is no GPU {text} here: {', '.join(gpu.uuid for gpu in view.gpus) or view.note}.")
