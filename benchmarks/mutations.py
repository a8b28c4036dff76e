"""Damage to the files of a run folder: what disks, copies and edits by hand do, drawn from a seed."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from numpy.typing import NDArray

NUMBER = re.compile(rb"(?<=[:\[,])(-?\d+\.\d+)(?=[,\]}])")
DRAWN = frozenset({".md", ".html"})
"""Reports, which nothing reads back."""
CORE = ("plan.json", "machine.json", "blocks.jsonl", "records.jsonl", "seal.json", "findings.json")


def flip(data: bytes, chance: random.Random) -> bytes:
    """Flip one bit."""
    if not data:
        return b"\x01"
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def truncate(data: bytes, chance: random.Random) -> bytes:
    """Keep only the beginning."""
    return data[: chance.randrange(len(data))] if data else b""


def empty(_data: bytes, _chance: random.Random) -> bytes:
    """Keep nothing."""
    return b""


def zeros(data: bytes, chance: random.Random) -> bytes:
    """Put NUL bytes over a part, as a file system may that lost a block."""
    at = chance.randrange(max(1, len(data)))
    return data[:at] + bytes(min(512, len(data) - at) or 8) + data[at + 512 :]


def not_utf8(data: bytes, chance: random.Random) -> bytes:
    """Put bytes in that are no text."""
    at = chance.randrange(max(1, len(data)))
    return data[:at] + b"\xff\xfe\xc3" + data[at:]


def scaled(data: bytes, chance: random.Random) -> bytes:
    """Double or halve one number."""
    numbers = list(NUMBER.finditer(data))
    if not numbers:
        return data + b"0"
    one = chance.choice(numbers)
    return data[: one.start()] + repr(float(one[0]) * chance.choice((2.0, 0.5))).encode() + data[one.end() :]


def huge(data: bytes, chance: random.Random) -> bytes:
    """Make one number longer than any computer counts."""
    numbers = list(NUMBER.finditer(data))
    at = chance.choice(numbers).start() if numbers else 0
    return data[:at] + b"9" * 5000 + data[at:]


def deep(data: bytes, chance: random.Random) -> bytes:
    """Put brackets in brackets, thousands of times."""
    lines = data.splitlines(keepends=True) or [b"\n"]
    lines[chance.randrange(len(lines))] = b"[" * 50_000 + b"]" * 50_000 + b"\n"
    return b"".join(lines)


def repeated(data: bytes, chance: random.Random) -> bytes:
    """Have one line twice."""
    lines = data.splitlines(keepends=True) or [b"\n"]
    at = chance.randrange(len(lines))
    return b"".join([*lines[: at + 1], *lines[at:]])


def reordered(data: bytes, chance: random.Random) -> bytes:
    """Exchange two lines."""
    lines = data.splitlines(keepends=True)
    if len(lines) < 2:
        return data + data
    one, other = chance.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def line_lost(data: bytes, chance: random.Random) -> bytes:
    """Leave one line out."""
    lines = data.splitlines(keepends=True)
    if lines:
        del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def _stored(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _samples(data: bytes) -> NDArray[np.float64]:
    return np.asarray(np.load(io.BytesIO(data)), dtype=np.float64)


def doubled(data: bytes, _chance: random.Random) -> bytes:
    """Double all samples."""
    return _stored(2 * _samples(data))


def narrow(data: bytes, _chance: random.Random) -> bytes:
    """Keep samples in half the bytes."""
    return _stored(_samples(data).astype(np.float32))


def flat(data: bytes, _chance: random.Random) -> bytes:
    """Give samples a second dimension."""
    return _stored(_samples(data)[None, :])


def not_a_number(data: bytes, chance: random.Random) -> bytes:
    """Make one sample NaN or infinite."""
    result = _samples(data).copy()
    if len(result):
        result[chance.randrange(len(result))] = chance.choice((np.nan, np.inf))
    return _stored(result)


def negative(data: bytes, _chance: random.Random) -> bytes:
    """Turn the sign."""
    return _stored(-_samples(data) - 1)


def foreign(_data: bytes, chance: random.Random) -> bytes:
    """Put samples of something else there."""
    return _stored(np.array([chance.random() for _ in range(chance.randrange(1, 50))]))


ANY = (flip, truncate, empty, zeros, not_utf8)
TEXT = (scaled, huge, deep, repeated, reordered, line_lost)
ARRAYS = (doubled, narrow, flat, not_a_number, negative, foreign)


def mutate(folder: Path, chance: random.Random) -> tuple[str, str]:
    """Damage one file of a run folder; return what was done, and to which file. Hard links are not written through."""
    path = _chosen(folder, chance)
    name = path.relative_to(folder).as_posix()
    draw = chance.random()
    if draw < 0.08:
        path.unlink()
        return "deleted", name
    if draw < 0.16:
        alike = [p for p in path.parent.iterdir() if p.is_file() and p.suffix == path.suffix and p != path]
        if alike:
            other = chance.choice(sorted(alike))
            first, second = path.read_bytes(), other.read_bytes()
            _replace(path, second)
            _replace(other, first)
            return "swapped", name
    kinds = ARRAYS if path.suffix == ".npy" and chance.random() < 0.7 else ANY if chance.random() < 0.5 else TEXT
    change = chance.choice(kinds if path.suffix != ".npy" or kinds is ARRAYS else ANY)
    before = path.read_bytes()
    after = change(before, chance)
    _replace(path, after if after != before else before + b"\n ")
    return change.__name__, name


def _chosen(folder: Path, chance: random.Random) -> Path:
    """Return a file: one of the run's own, of its samples, or of what lies beside them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    core = [path for path in files if path.name in CORE and path.parent == folder]
    arrays = [path for path in files if path.suffix == ".npy"]
    others = [path for path in files if path not in core and path.suffix not in {".npy", ".png"} | DRAWN]
    groups = [group for group in (core, core, arrays, arrays, others) if group]
    return chance.choice(chance.choice(groups))


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def numbers_in(text: str) -> object:
    """Return what a result printed as JSON says; null where it printed none."""
    try:
        result = json.loads(text)
    except ValueError:
        return None
    return {name: result[name] for name in ("headline", "findings", "records") if name in result}
