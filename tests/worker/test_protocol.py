"""Frames survive any cut; what is not of the protocol is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.worker import protocol as say


@given(
    payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=5),
    cut=st.integers(min_value=1, max_value=50),
)
@settings(max_examples=60, deadline=None)
def test_frames_come_out_whole_however_the_bytes_are_cut(payloads: list[bytes], cut: int) -> None:
    sent = [say.BlockDone(start_ns=n, end_ns=n + 1, series=()) for n in range(len(payloads))]
    stream = b"".join(say.encode(m, p) for m, p in zip(sent, payloads, strict=True))
    decoder = say.FrameDecoder()
    received: list[say.Frame] = []
    for start in range(0, len(stream), cut):
        decoder.feed(stream[start : start + cut])
        while (frame := decoder.next()) is not None:
            received.append(frame)
    assert [f.message for f in received] == sent
    assert [f.payload for f in received] == payloads


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\0\0\0\5\0\0\0\0hello", b"\0\0\0\2\0\0\0\0{}"])
def test_garbage_is_called_garbage(garbage: bytes) -> None:
    decoder = say.FrameDecoder()
    decoder.feed(garbage)
    with pytest.raises(say.InvalidMessage):
        decoder.next()
