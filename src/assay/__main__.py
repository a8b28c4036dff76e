"""``python -m assay``."""

import os
import sys

# Python puts the working folder first; a file called random.py there must not take the library's place.
if sys.path and sys.path[0] in {"", os.getcwd()}:  # noqa: PTH109 - pathlib would be an import before that
    del sys.path[0]

from assay.cli.entry import main

sys.exit(main())
