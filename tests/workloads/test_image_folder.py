"""Training on a folder of images: which are taken, how they are fed, and what is wrong with a folder."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.training import workloads

if TYPE_CHECKING:
    from pathlib import Path

COLOURS = {"ant": (255, 0, 0), "bee": (0, 255, 0), "cat": (0, 0, 255)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of plain colour; one keeps its images a folder deeper, as Tiny ImageNet does."""
    from PIL import Image

    for name, colour in COLOURS.items():
        for number in range(5):
            below = tmp_path / name / ("images" if name == "bee" else ".")
            below.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 30 + number), colour).save(below / f"{number}.PNG")
        (tmp_path / name / "notes.txt").write_text("not an image")
    return tmp_path


def test_images_are_spread_over_the_classes_and_taken_again_where_they_are_too_few(folder: Path) -> None:
    some = workloads.choose_images(folder, 6, seed=1)
    assert Counter(number for _, number in some) == {0: 2, 1: 2, 2: 2}
    assert len({path for path, _ in some}) == 6
    assert workloads.choose_images(folder, 6, seed=1) == some
    assert workloads.choose_images(folder, 6, seed=2) != some
    many = workloads.choose_images(folder, 40, seed=1)
    assert len(many) == 40
    assert len({path for path, _ in many}) == 15


@pytest.mark.parametrize("channels_last", [False, True])
def test_batches_take_turns_with_their_classes_brought_to_mean_and_deviation(folder: Path, channels_last: bool) -> None:
    feed = workloads.folder_images(folder, 2, 32, 0, where="cpu", channels_last=channels_last)
    fed = [feed() for _ in range(workloads.IMAGE_BATCHES + 1)]
    assert fed[0][0].equal(fed[-1][0])
    for inputs, classes in fed:
        assert tuple(inputs.shape) == (2, 3, 32, 32)
        assert inputs.is_contiguous() != channels_last
        for image, number in zip(inputs, classes, strict=True):
            colour = np.asarray(list(COLOURS.values())[int(number)])
            expected = (colour - workloads.PIXEL_MEAN) / workloads.PIXEL_DEVIATION
            assert image[:, 5, 7].numpy() == pytest.approx(expected, abs=1e-4)


def test_what_is_wrong_with_a_folder_is_said_in_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"and .*/ant/0\.PNG is none\.$"):
        workloads.choose_images(folder / "ant" / "0.PNG", 4, 0)
    with pytest.raises(BadInput, match=r"ant has 0 subfolders; it takes one for each class, at most 1000\.$"):
        workloads.choose_images(folder / "ant", 4, 0)
    (folder / "empty" / "class").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"^The subfolders of .*empty hold no image \(\.bmp, \.jpeg"):
        workloads.choose_images(folder / "empty", 4, 0)
    (folder / "empty" / "class" / "broken.jpg").write_text("no JPEG")
    with pytest.raises(BadInput, match=r"broken\.jpg cannot be read as an image: cannot identify image file"):
        workloads.folder_images(folder / "empty", 1, 32, 0, where="cpu", channels_last=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MachineCannot, match=r"^Images are read by Pillow, which cannot be imported here"):
        workloads.folder_images(folder, 1, 32, 0, where="cpu", channels_last=False)
