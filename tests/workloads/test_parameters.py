from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput
from assay.workloads.parameters import block_sizes, complete_config, read_flag, read_size

if TYPE_CHECKING:
    from assay.core.values import Params


@pytest.mark.parametrize("value", [0, -3, True, 2.0, "8", None])
def test_a_size_that_is_not_a_positive_whole_number_is_refused(value: float | str | None) -> None:
    with pytest.raises(BadInput, match=r"^rows is a whole number of at least 1, not "):
        read_size({"rows": value}, "rows")


def test_a_flag_is_a_yes_or_no_and_nothing_else() -> None:
    assert read_flag({"causal": True}, "causal") is True
    with pytest.raises(BadInput, match=r"^causal is true or false, not 1\.$"):
        read_flag({"causal": 1}, "causal")


def test_block_sizes_keep_their_order_and_are_clipped_to_the_problem_without_repeats() -> None:
    assert block_sizes((128, 32, 256), 256) == (128, 32, 256)
    assert block_sizes((128, 32, 256), 100) == (100, 32)
    assert block_sizes((128, 32, 256), 7) == (7,)


def test_a_configuration_takes_what_it_leaves_out_from_the_default() -> None:
    default: Params = {"block_q": 64, "layout": "bhsd"}
    assert complete_config(None, default) == default
    assert complete_config({}, default) == default
    assert complete_config({"layout": "bshd"}, default) == {"block_q": 64, "layout": "bshd"}


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        BadInput, match=r"^'blok_q' is not a setting here; there are block_q, layout\. Did you mean block_q\?$"
    ):
        complete_config({"blok_q": 8}, {"block_q": 64, "layout": "bhsd"})
