"""The lines of the older bench, whole, broken and at odds with themselves."""

from __future__ import annotations

import io
import json
import random
import sys
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.compat.threshold import parse_printed_lines

if TYPE_CHECKING:
    from pathlib import Path

SLIDING = "S=256 w=32 sliding masked 0.12 ms  fa2 0.10 ms  speedup x1.20"
COMPRESSED = "S=1024 l=32 d=16 compressed masked 0.50 ms  fa2 0.20 ms  speedup x2.47"
ROWS = [
    {
        "branch": "sliding",
        "sequence_length": 256,
        "window_size": 32,
        "speedup": 1.2,
        "masked_ms": 0.12,
        "fa2_ms": 0.1,
    },
    {
        "branch": "compressed",
        "sequence_length": 1024,
        "window_size": None,
        "speedup": 2.47,
        "masked_ms": 0.5,
        "fa2_ms": 0.2,
        "l": 32,
        "d": 16,
    },
]


def test_lines_of_both_branches_become_rows_and_others_are_counted() -> None:
    found = parse_printed_lines(
        f"Sliding sweep:\r\n{SLIDING}\r\n\nCompressed sweep:\n  {COMPRESSED}  \nS=512 w=32 FA-2 unsupported\n"
    )
    assert [row.as_json() for row in found.rows] == ROWS
    assert (found.others, found.broken, found.odd) == (3, (), ())


def test_a_line_that_was_cut_off_is_told_apart_from_chatter() -> None:
    found = parse_printed_lines(
        f"{SLIDING}\n{SLIDING[:-9]}\nS=256 w=32 sliding masked nan ms  fa2 0.10 ms  speedup xnan\n"
    )
    assert (len(found.rows), found.others, found.broken) == (1, 2, (2, 3))


def test_a_speed_up_is_not_blamed_for_rounding() -> None:
    rolled = random.Random(7)
    for _ in range(300):
        masked, fa2 = rolled.uniform(0.004, 3.0), rolled.uniform(0.006, 3.0)
        line = f"S=256 w=32 sliding masked {masked:.2f} ms  fa2 {fa2:.2f} ms  speedup x{masked / fa2:.2f}"
        assert parse_printed_lines(line).odd == (), line


def test_a_speed_up_that_its_times_do_not_allow_is_told_and_so_is_a_point_that_comes_twice() -> None:
    found = parse_printed_lines(f"{SLIDING}\n{SLIDING.replace('x1.20', 'x1.40')}\n")
    assert found.odd == (
        "line 2: the printed speed-up x1.4 disagrees with its times, which say x1.20",
        "line 2: the same point as line 1",
    )


def test_rows_are_written_and_the_rest_is_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, output = tmp_path / "bench.txt", tmp_path / "rows.json"
    file.write_text(f"\ufeff{SLIDING}\n# Device: cuda\n{COMPRESSED}\n")
    assert main(["threshold", "parse", str(file)]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        "device_info": None,
        "recommendation": None,
        "results": ROWS,
        "parity_passed": None,
    }
    assert said.err == f"{file}: 1 other line was left out.\n"
    assert main(["threshold", "parse", str(file), "--output", str(output)]) == 0
    assert json.loads(output.read_text())["results"] == ROWS
    assert capsys.readouterr().out == ""


def test_rows_are_read_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SLIDING.encode())))
    assert main(["threshold", "parse", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == ROWS[:1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "bench.txt is empty"),
        (b"hello\nworld\n", "None of the 2 lines of "),
        (SLIDING.encode()[:40], "line 1 begins like one, but is not whole"),
        (b"\xff\xfe", "not UTF-8"),
        (None, "does not exist"),
    ],
)
def test_a_file_without_a_row_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    file = tmp_path / "bench.txt"
    if content is not None:
        file.write_bytes(content)
    assert main(["threshold", "parse", str(file)]) == 2
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert said in told.err
