"""An environment on another machine that has this very version of Assay; made once, used from then on."""

from __future__ import annotations

import hashlib
from shlex import quote
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.hosts.remote.parcel import CHUNK, key, wheel

if TYPE_CHECKING:
    from assay.hosts.base import Order
    from assay.hosts.remote.line import Line, Said

PYTHON = "python3"
"""The interpreter there, where none is named: then the best of `LIKELY` is taken."""

LIKELY = (
    PYTHON, "/opt/conda/bin/python3", "/opt/venv/bin/python3", "/usr/local/bin/python3", "python3.13", "python3.12",
    "python3.11",
)  # fmt: skip
LEAST = (3, 11)
NO_PYTHON = 46
MADE_WITHIN_S = 1800.0

PRELUDE = 'umask 077\nbase="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/assay"\n'
"""What every script begins with: where all that is ours is kept there."""


def key_of(order: Order) -> str:
    """Return the environment's name: it depends on every file of this version, and on the interpreter named."""
    return f"{key()}-{hashlib.sha256(order.python.encode()).hexdigest()[:8]}"


def prepare(line: Line, order: Order) -> None:
    """Make the environment there.

    Raises:
        MachineCannot: There is no interpreter that would do, something it needs cannot be had, the disk is full.
    """
    data = wheel()
    pieces = (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))
    result = line.do(_script(order), feed=pieces, within_s=MADE_WITHIN_S)
    if result.code == NO_PYTHON:
        raise MachineCannot(_no_python(line, order, result))
    if result.code != 0:
        why = last_line(result.err) or f"exit code {result.code}"
        raise MachineCannot(f"Assay cannot be set up on {line.where}: {in_words(why)}.")


def last_line(data: bytes) -> str:
    """Return the last line that says anything."""
    lines = [line.strip() for line in data.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""


def in_words(why: str) -> str:
    """Return a reason with what to do about it, where that is known."""
    return f"its disk is full ({why})" if "No space left" in why or "quota" in why.lower() else why


def _no_python(line: Line, order: Order, said: Said) -> str:
    least = ".".join(map(str, LEAST))
    old = said.out.decode("utf-8", errors="replace").strip()
    if old:
        return (
            f"{line.where} has {old}, and Assay needs Python {least} or later; name another one with --remote-python."
        )
    what = "no python3" if order.python == PYTHON else f"no {order.python}"
    return f"{line.where} has {what}; --remote-python names the interpreter there."


def _script(order: Order) -> str:
    """Return what puts the wheel there, finds an interpreter and has it make the environment."""
    candidates = LIKELY if order.python == PYTHON else (order.python,)
    name = key_of(order)
    return f"""{PRELUDE}
mkdir -p "$base/env" "$base/orders" || exit 1
wheel="$base/env/.{name}.$$.whl"
trap 'rm -f "$wheel"' EXIT
cat > "$wheel" || exit 1
found= old=
for each in {" ".join(map(quote, candidates))}; do
  each=$(command -v "$each" 2>/dev/null) || continue
  if "$each" -c 'import sys; sys.exit(sys.version_info < {LEAST})' 2>/dev/null; then
    [ -n "$found" ] || found=$each
    if "$each" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
      found=$each
      break
    fi
  else
    old="$("$each" -V 2>&1 | tail -n 1) ($each)"
  fi
done
if [ -z "$found" ]; then
  echo "$old"
  exit {NO_PYTHON}
fi
PYTHONPATH="$wheel" "$found" -P -m assay.hosts.remote.there.settle "$base" {name} "$wheel"
"""
