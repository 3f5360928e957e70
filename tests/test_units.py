"""The one place that formats: three digits, the shortest prefix, and "-" for what was not measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.units import (
    NOT_MEASURED,
    amount,
    bytes_,
    count,
    cut_in_the_middle,
    distinct_width,
    duration,
    estimate,
    interval,
    join_interval,
    number,
    percent,
    plural,
    si,
)

FINITE = st.floats(min_value=1e-3, max_value=1e15)
SCALES = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0}


def test_what_was_not_measured_is_a_dash_and_never_a_zero() -> None:
    assert {number(None), si(None, "W"), duration(None), bytes_(None), percent(None)} == {NOT_MEASURED}


def test_a_mean_of_few_things_is_not_rounded_to_none() -> None:
    assert [count(value) for value in (None, 0, 0.05, 2.5, 2, 1234.4, 1_234_567)] == [
        *(NOT_MEASURED, "0", "0.05", "2.5", "2", "1,234", "1,234,567")
    ]


def test_a_measured_zero_stays_a_zero() -> None:
    assert (number(0), si(0, "W"), duration(0), bytes_(0), percent(0)) == ("0", "0 W", "0 ns", "0 B", "0 %")


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.14159, "3.14"), (1234567.0, "1,230,000"), (0.00001234, "0.0000123"), (-1500.0, "-1,500"), (999, "999")],
)
def test_a_number_has_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(21840, "21.8 kB"), (1_500_000, "1.5 MB"), (3.2e9, "3.2 GB"), (12, "12 B")]
)
def test_bytes_are_decimal(value: float, text: str) -> None:
    assert bytes_(value) == text


@pytest.mark.parametrize(
    ("ns", "text"), [(1, "1 ns"), (1_500, "1.5 us"), (1_500_000, "1.5 ms"), (2_000_000_000, "2 s"), (-4_000, "-4 us")]
)
def test_a_duration_takes_the_longest_unit_that_fits(ns: float, text: str) -> None:
    assert duration(ns) == text


def test_a_share_of_one_reads_as_a_percentage() -> None:
    assert (percent(0.125), percent(1.0, digits=0)) == ("12.5 %", "100 %")
    assert (percent(0.003, 0), percent(0.0001, 0), percent(0.0, 0)) == ("0.3 %", "<0.1 %", "0 %")


@given(FINITE)
def test_a_formatted_value_reads_back_within_half_a_percent(value: float) -> None:
    text, prefix = si(value, "").split(" ") if " " in si(value, "") else (si(value, ""), "")
    assert math.isclose(float(text.replace(",", "")) * SCALES[prefix], value, rel_tol=5.1e-3)


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(0.0706, "J", "70.6 mJ"), (4.1e-5, "W", "41 uW"), (0.5, "B", "0.5 B"), (0, "J", "0 J")]
)
def test_small_energies_and_powers_take_a_prefix_and_bytes_do_not(value: float, unit: str, text: str) -> None:
    assert si(value, unit) == text


def test_the_ends_of_an_interval_share_the_prefix_of_their_value() -> None:
    assert estimate(0.195, 0.0943, 1.2, "W") == "195 mW [94.3, 1,200]"
    assert estimate(2.0, None, 3.0, "W") == "2 W"


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "text"),
    [
        (12_100_000, 11_900_000, 12_400_000, "ns", "12.1 ms [11.9, 12.4]"),
        (0.0121, 0.009, 0.0124, "s", "12.1 ms [9, 12.4]"),
        (0.125, 0.12, 0.131, "1", "12.5 % [12.0, 13.1]"),
        (1, 0.98, 1.02, "cores", "1 core [0.98, 1.02]"),
        (42, 41, 43.5, "%", "42 % [41, 43.5]"),
        (51.5, 50, 53, "degC", "51.5 °C [50, 53]"),
        (340, 335, 345, "samples/s", "340 samples/s [335, 345]"),
        (None, None, None, "J", "-"),
    ],
)
def test_an_estimate_is_its_value_and_its_interval_in_one_unit(
    value: float | None, low: float | None, high: float | None, unit: str, text: str
) -> None:
    assert estimate(value, low, high, unit) == text


@pytest.mark.parametrize(("count", "said"), [(0, "0 cores"), (1, "1 core"), (2, "2 cores"), (1000, "1,000 cores")])
def test_a_count_of_one_has_no_plural(count: int, said: str) -> None:
    assert plural(count, "core") == said


def test_one_core_is_one_core_on_the_page() -> None:
    assert [amount(cores, "cores") for cores in (1.0, 1.0001, 0.5, 2)] == ["1 core", "1 core", "0.5 cores", "2 cores"]
    assert interval(1.0, 1.004, "cores") == "about 1 core"
    assert interval(1.0, 1.5, "cores") == "[1, 1.5] cores"


def test_names_are_cut_where_they_still_differ() -> None:
    names = [f"transformer.h.{block}.{part}" for block in range(12) for part in ("attn.c_attn", "mlp.c_fc")]
    width = distinct_width(names)
    assert width <= 16
    assert len(set(cut_in_the_middle(names, width))) == len(names)
    assert all(len(name) <= width for name in cut_in_the_middle(names, width))
    assert cut_in_the_middle(["conv1", "layer1.0.conv1"], 8) == ["conv1", "la…conv1"]


def test_an_interval_whose_ends_are_written_alike_is_one_number() -> None:
    assert estimate(0.9999, 0.9998, 1.0, "1") == "100 %"
    assert interval(0.9999, 1.0, "1") == "about 100 %"
    assert join_interval("12.1 ms", "12.1 ms") == "about 12.1 ms"


def test_no_number_has_more_than_three_digits() -> None:
    assert percent(1.0) == "100 %"
    assert amount(0.4829, "cores") == "0.48 cores"
    assert estimate(0.995, 0.977, 1.0, "1") == "99.5 % [97.7, 100]"
    assert interval(0.0, 3_200_000, "ns") == "[0, 3.2] ms"


def test_a_value_that_rounds_to_a_whole_unit_is_one_of_it() -> None:
    assert duration(999_990.0) == "1 ms"
    assert duration(999_400.0) == "999 us"
    assert amount(999_990.0, "ns") == "1 ms"
    assert amount(999_999.0, "B") == "1 MB"
    assert duration(59.99e9) == "1 min"
