"""The deadline that a rented machine keeps itself."""

from __future__ import annotations

from datetime import UTC, datetime
from shlex import quote

OFF = (
    "sync; s=; [ $(id -u) = 0 ] || s='sudo -n'; "
    "$s shutdown -h now || $s poweroff -f || $s halt -f -p || $s sh -c 'echo o > /proc/sysrq-trigger'; "
    "sleep 20; $s kill -s TERM 1; sleep 10; $s kill -s KILL -- -1"
)
"""Whatever ends it: a whole machine is switched off; a container ends with its first process."""


def script(deadline_at: datetime, *, now: datetime | None = None, off: str = OFF) -> str:
    """Return a script of ``sh`` that makes a machine switch itself off at a deadline; it returns at once.

    The machine counts seconds from now, as its clock may be wrong. Said again, the last deadline counts.
    """
    left_s = max(0, round((deadline_at - (now or datetime.now(UTC))).total_seconds()))
    return f"""umask 077
f="${{TMPDIR:-/tmp}}/assay-watchdog.$(id -u)"
if [ -O "$f" ]; then
  kill -s KILL -- "-$(cat "$f")" 2>/dev/null
  rm -f "$f"
fi
command -v setsid >/dev/null || exit 1
nohup setsid sh -c {quote(f"sleep {left_s}; {off}")} </dev/null >/dev/null 2>&1 &
echo $! > "$f"
"""
