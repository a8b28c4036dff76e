"""Programs named ``ncu`` that are none: one that works, and others that refuse, hang, or lack a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.monitor import ncu_texts

if TYPE_CHECKING:
    from pathlib import Path

_BEGIN = """#!/bin/sh
if [ "$1" = "--version" ]; then
cat <<'END'
{version}END
exit 0
fi
echo "$@" >> "{folder}/asked.txt"
log=/dev/stdout
while [ $# -gt 0 ]; do
  case "$1" in
    --log-file) log=$2; shift;;
    */python*) break;;
  esac
  shift
done
"""


def fake_ncu(folder: Path, body: str, *, version: str = ncu_texts.VERSION) -> Path:
    """Make one in a folder to put on the path; in the body ``$log`` is where its words go, ``"$@"`` runs the calls."""
    folder.mkdir()
    program = folder / "ncu"
    program.write_text(_BEGIN.format(version=version, folder=folder) + body)
    program.chmod(0o755)
    return folder


def says(text: str, *, code: int = 0) -> str:
    """Return the body of one that says something and ends."""
    return f"cat > \"$log\" <<'END'\n{text}\nEND\nexit {code}\n"


def works(text: str) -> str:
    """Return the body of one that runs the calls, and prints a table if they succeed."""
    return f'"$@" || exit 1\n{says(text)}'


HANGS = "sleep 1013 & sleep 1013\n"


def lacks(metric: str, complaint: str, text: str) -> str:
    """Return the body of one that complains about a metric as long as it is asked for."""
    asked = f'if tail -n 1 "$(dirname "$0")/asked.txt" | grep -q "{metric}"; then\n'
    return f"{asked}{says(complaint, code=1)}fi\n{says(text)}"
