"""Digests inside JSON: a change anywhere, a line lost, repeated or moved is noticed; a torn last line is not one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import (
    append_sealed_line,
    compute_digest,
    read_sealed_json,
    read_sealed_lines,
    seal_json,
    unseal_json,
    write_sealed_json,
)

if TYPE_CHECKING:
    from pathlib import Path


def chain(path: Path, count: int = 4) -> list[bytes]:
    for number in range(count):
        append_sealed_line(path, json.dumps({"n": number, "of": "a chain"}), "start")
    return path.read_bytes().splitlines(keepends=True)


def test_the_digest_is_that_of_the_stored_bytes_before_it() -> None:
    line = seal_json('{"a":1.50}', "before")
    digest = compute_digest(b'before\n{"a":1.50')
    assert line == '{"a":1.50,"digest":"' + digest + '"}'
    found = unseal_json(line.encode(), "before")
    assert found is not None
    assert (found.body, json.loads(line)["digest"]) == (b'{"a":1.50}', found.digest)


def test_an_object_without_a_digest_has_none() -> None:
    assert unseal_json(b'{"a":1}') is None
    with pytest.raises(ValueError, match="has keys"):
        seal_json("{}")


def test_every_flipped_bit_of_a_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_sealed_json(path, {"value": 12.5, "name": "softmax", "more": [1, 2]})
    whole = path.read_bytes()
    assert json.loads(read_sealed_json(path)) == {"value": 12.5, "name": "softmax", "more": [1, 2]}
    for place in range(len(whole) - len('"\n}\n')):
        for bit in (1, 32, 128):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with pytest.raises(BadInput, match=r"one\.json"):
                read_sealed_json(path)


def test_lines_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    chain(path)
    assert [json.loads(line.body)["n"] for line in read_sealed_lines(path, "start")] == [0, 1, 2, 3]
    assert read_sealed_lines(tmp_path / "none.jsonl", "start") == []


@pytest.mark.parametrize(
    ("order", "noticed_at"),
    [((1, 2, 3), 1), ((0, 2, 3), 2), ((0, 1, 1, 2, 3), 3), ((1, 0, 2, 3), 1), ((0, 1, 3, 2), 3)],
)
def test_a_line_lost_repeated_or_moved_is_named(tmp_path: Path, order: tuple[int, ...], noticed_at: int) -> None:
    path = tmp_path / "lines.jsonl"
    lines = chain(path)
    path.write_bytes(b"".join(lines[n] for n in order))
    with pytest.raises(DamagedFile, match=rf"lines\.jsonl, line {noticed_at} is damaged"):
        read_sealed_lines(path, "start")


def test_lines_of_another_run_or_file_do_not_fit(tmp_path: Path) -> None:
    chain(tmp_path / "lines.jsonl")
    with pytest.raises(DamagedFile, match="line 1"):
        read_sealed_lines(tmp_path / "lines.jsonl", "another start")


def test_a_torn_last_line_is_left_out_and_the_next_follows_the_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = chain(path)
    for cut in range(len(lines[-1])):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
        assert len(read_sealed_lines(path, "start")) == 3
    append_sealed_line(path, '{"n": "after"}', "start")
    assert [json.loads(line.body)["n"] for line in read_sealed_lines(path, "start")] == [0, 1, 2, "after"]


def test_nothing_is_added_behind_a_line_without_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"n": 0}\n')
    with pytest.raises(DamagedFile, match="last line has no digest"):
        append_sealed_line(path, '{"n": 1}', "start")
    assert path.read_bytes() == b'{"n": 0}\n'
