"""The torchrun of one node, started for us elsewhere: it says that it is there before it waits for the others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Import PyTorch, which may fail or hang on one node of many, leave a mark, and be a torchrun."""
    from torch.distributed.run import main as torchrun

    marker, *torchrun_arguments = arguments
    Path(marker).write_text("joins\n", encoding="ascii")
    torchrun(torchrun_arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
