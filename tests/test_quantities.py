"""One vocabulary of what can be measured: every sensor's quantity is in it, and an unknown one stands for itself."""

from __future__ import annotations

from stepscope.quantities import CHANNELS, GROUPS, HIGHER, LOWER, METRICS, SCOPE, find_quantity, sort_metrics


def test_a_name_has_one_row() -> None:
    names = [row.name for row in (*CHANNELS, *METRICS)]
    assert len(set(names)) == len(names)


def test_every_row_says_how_it_is_shown() -> None:
    for row in (*CHANNELS, *METRICS):
        assert row.label[0].isupper()
        assert row.group in GROUPS
        assert row.better in (LOWER, HIGHER, None)
        assert row.explained_by in ("", SCOPE, "cpu", "gpu", "memory")


def test_a_quantity_that_nobody_knows_is_shown_plainly_under_its_own_name_and_unit() -> None:
    fan = find_quantity("fan_load", "%")
    assert (fan.title, fan.shown_unit, fan.group, fan.better) == ("Fan load", "%", "Other", None)
    assert fan.plain
    assert fan.live
    assert fan.compared


def test_what_was_not_measured_is_said_by_the_label_of_the_same_quantity() -> None:
    assert find_quantity("simulated_energy_per_step").label == "Simulated energy per step"
    assert find_quantity("estimated_energy_per_step").better == LOWER
    assert not find_quantity("simulated_energy").compared


def test_metrics_have_one_order_and_what_is_unknown_comes_last() -> None:
    names = ["fan_load", "throughput", "estimated_energy_per_step", "energy_per_step", "temperature", "step_time"]
    assert sort_metrics([*names, "fan_load"]) == [
        "step_time",
        "throughput",
        "energy_per_step",
        "estimated_energy_per_step",
        "temperature",
        "fan_load",
    ]
