"""Kinds of GPU under all of their names, and what cannot work on which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.hosts import offers
from assay.hosts.gpu_types import (
    FAMILIES,
    TYPES,
    parse_gpu_name,
    parse_gpu_type,
    reason_unsupported,
    satisfies,
    types_in,
)
from assay.hosts.offers import RentalRequest, evaluate_offer, format_usd

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "providers.md"
SPELLINGS = [(text, each.name) for each in TYPES for text in (each.name, *each.spellings)]


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX A6000", "A6000"),
        ("H100!", "H100"),
        ("a100_80gb", "A100-80GB"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX 1080 Ti"),
    ],
)
def test_drivers_and_providers_names_are_known(device: str, kind: str) -> None:
    assert parse_gpu_name(device) == kind


@given(st.sampled_from(SPELLINGS), st.data())
def test_case_and_separators_do_not_matter(spelled: tuple[str, str], data: st.DataObject) -> None:
    text, name = spelled
    mixed = "".join(data.draw(st.sampled_from([c.lower(), c.upper(), *("-_ " if c in "- " else "")])) for c in text)
    assert parse_gpu_name(f"NVIDIA {mixed}") == name


def test_no_two_types_share_a_spelling() -> None:
    assert all(parse_gpu_name(text) == name for text, name in SPELLINGS)
    assert all(parse_gpu_name(family) == family for family in FAMILIES)


def test_a_family_takes_its_types_and_a_type_only_itself() -> None:
    assert satisfies("A100", "NVIDIA A100-SXM4-40GB")
    assert satisfies("A100-40GB", "NVIDIA A100-SXM4-40GB")
    assert not satisfies("A100-80GB", "NVIDIA A100-SXM4-40GB")
    assert not satisfies("H100", "NVIDIA H200")
    assert satisfies("RTX 2080", "NVIDIA GeForce RTX 2080")
    assert not satisfies("RTX 2080", "NVIDIA GeForce RTX 2080 Ti")
    assert not satisfies("A100-40GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")


def test_what_is_told_as_a_family_may_be_another_type() -> None:
    assert satisfies("H100", "H100")
    assert not satisfies("H100-SXM", "H100")
    assert types_in("H100") == ("H100-SXM", "H100-PCIe", "H100-NVL")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("L5", "There is no GPU type 'L5'. Did you mean L4 (modal, runpod)?"),
        ("A1000", "A100 (modal, runpod, lambda)"),
        ("h10", "Did you mean H100 (modal, runpod, lambda) or A10 (modal, lambda)"),
        ("abacus!", "Offered are T4, L4,"),
        ("", "There is no GPU type ''. Offered are"),
    ],
)
def test_an_unknown_type_is_told_with_the_nearest_and_who_offers_them(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_gpu_type(text, offers.listed_gpu_types())
    assert said in str(caught.value)


def test_what_only_a_provider_knows_can_be_asked_for() -> None:
    assert parse_gpu_type("mi 300x", {"moon": ["MI300X"]}) == "MI300X"


def test_flash_attention_is_refused_where_it_cannot_work_and_nowhere_else() -> None:
    refused = reason_unsupported("T4", ["sliding_attention@masked", "sliding_attention@flash"])
    assert refused is not None
    assert "compute capability 8.0 or later, and a T4 has 7.5" in refused
    assert reason_unsupported("V100", ["compressed_attention@flash"]) is not None
    assert reason_unsupported("T4", ["softmax@torch", "mine.py:flash"]) is None
    assert all(reason_unsupported(each.name, ["x@flash"]) is None for each in TYPES if each.capability >= (8, 0))
    assert reason_unsupported("MI300X", ["x@flash"]) is None


def test_the_snapshot_names_kinds_as_assay_does_and_dates_its_prices() -> None:
    for host, found in offers.load_price_list().items():
        for kind, price in found.usd_per_hour.items():
            assert parse_gpu_name(kind) == kind
            assert price > 0
        assert {offer.priced_on for offer in offers.provider_prices(host)} == {found.priced_on}
    modal = offers.load_price_list()["modal"]
    assert (modal.usd_per_hour["L4"], modal.priced_on) == (0.80, "2026-06")
    assert "T4" not in offers.load_price_list()["lambda"].usd_per_hour
    assert offers.provider_prices("moon") == ()


def test_the_documents_table_is_the_snapshot() -> None:
    rows = re.findall(r"^\| ([A-Z]\S*) \| ([\d–].*) \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    told = {
        (host, kind, cell)
        for kind, cells in rows
        for host, cell in zip(offers.load_price_list(), cells.split(" | "), strict=True)
        if cell != "–"
    }
    assert told == {
        (
            host,
            offer.gpu,
            f"{offer.usd_per_hour:.2f} ({format_usd(evaluate_offer(RentalRequest(run_s=240), offer).cost_usd or 0.0)})",
        )
        for host in offers.load_price_list()
        for offer in offers.provider_prices(host)
    }
