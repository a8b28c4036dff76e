"""``python -m assay``."""

import sys
from pathlib import Path

# Python puts the working folder first; a file called random.py there must not take the library's place.
if sys.path and sys.path[0] in {"", str(Path.cwd())}:
    del sys.path[0]

from assay.cli.entry import main

sys.exit(main())
