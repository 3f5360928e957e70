"""`energy_by` on a run folder whose power follows its ops."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.analysis.attribution.powered_run import GAP_W, OTHER_W, WATTS, powered_run
from tests.analysis.powered import powered, rail, times
from tests.fabricate import fabricate_run

from stepscope.analysis.energy.fit_inputs import run_readings
from stepscope.analysis.energy.fit_span import scale_to_whole_run
from stepscope.analysis.energy.measured_energy import Energy
from stepscope.analysis.energy.operators import ENERGY_SCHEMA, RESOLUTION_SCHEMA, energy_by, resolution_table
from stepscope.analysis.energy.rail_fits import RailFit, fit_rails, group_energies
from stepscope.analysis.energy.step_totals import fit_against_readings_sentences
from stepscope.analysis.run import Run
from stepscope.analysis.summary import between_steps_sentences, resolution_sentences
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.steps import IN_PART
from stepscope.errors import UnknownName


@pytest.fixture(scope="module")
def rails(tmp_path_factory: pytest.TempPathFactory) -> list[RailFit]:
    run = Run(powered_run(tmp_path_factory.mktemp("powered")))
    return fit_rails(run, run.rails)


@pytest.mark.parametrize("keep_every", [1, 5])
def test_each_kind_has_the_power_that_it_drew(tmp_path: Path, keep_every: int) -> None:
    run = Run(powered_run(tmp_path, keep_every=keep_every))
    frame = energy_by(fit_rails(run, run.rails), "kind")
    for row in frame.head(8).iter_rows(named=True):
        true = GAP_W if row["name"] == FRAMEWORK_OVERHEAD else WATTS.get(row["name"], OTHER_W)
        assert row["watts"] == pytest.approx(true, rel=0.03)
        assert row["low"] <= row["joules_per_step"] <= row["high"]
        assert row["verdict"] == "resolved"


@pytest.mark.parametrize("by", ["module", "op", "kind", "phase"])
@pytest.mark.parametrize("method", ["fit", "nearest", "overlap"])
def test_parts_add_up_to_the_rail(rails: list[RailFit], by: str, method: str) -> None:
    frame, whole = energy_by(rails, by, method), energy_by(rails, "component", method)
    assert frame.schema == pl.Schema(ENERGY_SCHEMA)
    assert frame["joules_per_step"].sum() == pytest.approx(whole["joules_per_step"][0], rel=1e-2)
    assert frame["share"].sum() == pytest.approx(1, abs=1e-6)
    if method == "fit":
        assert frame["joules_per_step"].sum() == pytest.approx(whole["joules_per_step"][0], rel=1e-6)
    else:
        assert frame["low"].is_null().all()
        assert set(frame["verdict"]) == {"no interval"}


def test_a_part_whose_variance_is_lost_to_rounding_has_no_correlations(rails: list[RailFit]) -> None:
    found = rails[0].fit
    assert found is not None
    covariance = found.covariance.copy()
    covariance[0, 0] = -1e-30  # an energy of 0 J, beside others that are known to some microjoules
    whole = group_energies(replace(found, covariance=covariance), np.eye(len(covariance)))
    assert np.all(whole.correlation[0] == 0)
    assert np.all(np.abs(whole.correlation) <= 1)
    assert np.all(np.isfinite(whole.sd))


def test_a_module_is_split_by_phase(rails: list[RailFit]) -> None:
    frame = energy_by(rails, "module")
    conv = frame.filter(pl.col("name") == "features.0")
    assert sorted(conv["phase"]) == ["backward", "forward"]


def test_what_a_rail_can_resolve_is_reported(rails: list[RailFit]) -> None:
    (row,) = resolution_table(rails).iter_rows(named=True)
    assert row["resolved_share"] > 0.9
    assert row["more_steps"] == 0
    assert 0 < row["shortest_op_s"] < 0.001
    assert row["width_s"] == pytest.approx(0.0103, rel=0.02)
    assert not row["locked"]


def test_a_short_run_asks_for_more_steps(tmp_path: Path) -> None:
    run = Run(powered_run(tmp_path, steps=60, noise=0.1))
    found = fit_rails(run, run.rails)
    report = resolution_table(found)
    assert report.schema == pl.Schema(RESOLUTION_SCHEMA)
    assert report["resolved_share"][0] is None or report["resolved_share"][0] <= 1


def test_hardly_sampled_rails_say_why_they_have_no_numbers(tmp_path: Path) -> None:
    run = Run(powered_run(tmp_path, steps=10))
    (row,) = energy_by(fit_rails(run, run.rails), "kind").iter_rows(named=True)
    assert row["joules_per_step"] is None
    assert row["verdict"] == "not identifiable"
    assert "train" in row["reason"]


def test_a_rail_that_was_read_for_half_of_the_run_does_not_tell_the_rest(tmp_path: Path) -> None:
    path = powered_run(tmp_path, steps=300)
    samples = path / "samples" / "power.parquet"
    frame = pl.read_parquet(samples)
    frame.slice(len(frame) // 2).write_parquet(samples)
    run = Run(path)
    (whole,) = run.energy("component").to_dicts()
    assert whole["joules_per_step"] is not None
    assert run.rail_energy()["watts_low"].to_list() == [whole["low"]] == [None]
    (resolution,) = run.energy_resolution().to_dicts()
    assert (resolution["resolved_share"], resolution["more_steps"]) == (0.0, None)
    for reason in (whole["reason"], resolution["note"], *run.energy("kind")["reason"]):
        assert "read in 49" in reason or "read in 50" in reason


def test_a_rail_that_cannot_be_divided_has_a_total_all_the_same(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=100, power_w=5.0))
    (whole,) = run.energy("component").to_dicts()
    assert whole["watts"] == pytest.approx(5)
    assert whole["low"] <= whole["joules_per_step"] <= whole["high"]
    assert whole["verdict"] == "resolved"


def test_more_steps_of_a_long_run_are_promised_to_help_nobody(rails: list[RailFit]) -> None:
    fit = rails[0].fit
    assert fit is not None
    more = 1e5
    unsure = replace(fit, covariance=more * fit.covariance, statistical=more * fit.statistical)
    short, long = (replace(rails[0], fit=unsure, of_stretch=of_stretch) for of_stretch in (False, True))
    assert resolution_table([short])["more_steps"][0] > 0
    assert resolution_table([long])["more_steps"].to_list() == [None]
    assert resolution_table([replace(rails[0], of_stretch=True)])["more_steps"].to_list() == [0]


def test_a_rail_that_stands_still_is_said_to(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=100, power_w=5.0))
    (row,) = energy_by(fit_rails(run, run.rails), "kind").iter_rows(named=True)
    assert "5 W throughout" in row["reason"]
    assert energy_by(fit_rails(run, run.rails), "kind", "nearest")["watts"].drop_nulls()[0] == pytest.approx(5)


def test_without_power_or_without_ops_there_is_nothing(tmp_path: Path) -> None:
    silent = Run(fabricate_run(tmp_path / "silent"))
    assert energy_by(fit_rails(silent, silent.rails)).is_empty()
    bare = Run(fabricate_run(tmp_path / "bare", power_w=5.0, recorded=lambda _: False))
    assert energy_by(fit_rails(bare, bare.rails)).is_empty()
    assert resolution_table([]).is_empty()


def _in_parts(path: Path) -> Path:
    """Tell of a run that of each step the first half alone was profiled."""
    steps = pl.read_parquet(path / "steps.parquet")
    with (path / "events.jsonl").open("a", encoding="utf-8") as file:
        for step, t0_ns, t1_ns in steps.select("step", "t0_ns", "t1_ns").iter_rows():
            part = {"step": step, "part": "forward", "t0_ns": t0_ns, "until_ns": (t0_ns + t1_ns) // 2}
            said = {"t_ns": t0_ns, "source": "recorder", "kind": IN_PART, "message": "in part"}
            file.write(json.dumps(said | part) + "\n")
    steps.with_columns(recorded=pl.lit(value=False)).write_parquet(path / "steps.parquet")
    return path


def test_parts_of_steps_are_given_no_energy_and_no_use_and_it_is_said(tmp_path: Path) -> None:
    run = Run(_in_parts(fabricate_run(tmp_path, steps=60, power_w=5.0)))
    for method in ("fit", "nearest", "overlap"):
        (row,) = run.energy("kind", method).to_dicts()
        assert row["joules_per_step"] is None
        assert "no step was profiled whole" in row["reason"]
    assert run.energy("component", "nearest")["watts"].to_list() == pytest.approx([5.0])
    assert set(run.utilisation()["reason"]) == {row["reason"]}
    assert "no step was profiled whole" in resolution_sentences(run.energy_resolution())[0]


def test_parts_of_steps_of_the_warm_up_have_no_energy(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, steps=20, power_w=5.0, header={"warmup_steps": 20})
    run = Run(_in_parts(path))
    assert run.energy().is_empty()
    assert run.utilisation().is_empty()


def test_the_energy_of_a_rail_is_never_below_0(rails: list[RailFit]) -> None:
    unsure = Energy(1.0, 0.0, 100.0, 1.0, 0.0, 1000.0, 1.0, 0.0)
    frame = energy_by([replace(one, measured=unsure) for one in rails], "component")
    assert frame["low"].to_list() == [0.0]


def test_idle_readings_do_not_hide_how_coarse_a_sensor_is(tmp_path: Path) -> None:
    t_ns = times(100, before_s=3.0)
    random = np.random.default_rng(0)
    watts = np.where(t_ns < 0, random.integers(0, 40, len(t_ns)), 10 + (random.random(len(t_ns)) < 0.2)) / 2
    run = powered(tmp_path, rail("VDD_IN", watts, t_ns, step_size=0.5))
    steps = run.steps.slice(run.warmup_steps)
    _, options = run_readings(run, run.rails.lines[0].best, int(steps["t0_ns"][0]))
    assert 0.1 < options.floor < 0.5


@pytest.mark.parametrize(("share", "verdict"), [(0.06, "resolved"), (0.09, "coarse"), (0.2, "not identifiable")])
def test_the_total_of_a_rail_is_held_to_its_99_percent_interval_as_its_parts_are(
    rails: list[RailFit], share: float, verdict: str
) -> None:
    fit = rails[0].fit
    assert fit is not None
    watts = fit.total.joules / (fit.timeline.end - fit.timeline.begin)
    unsure = Energy(1.0, 0.0, 100.0, watts, watts * (1 - share), watts * (1 + share), 1.0, 0.0)
    (row,) = energy_by([replace(rails[0], measured=unsure)], "component").to_dicts()
    assert row["verdict"] == verdict
    assert (row["reason"] is None) == (verdict == "resolved")
    assert row["high"] - row["joules_per_step"] == pytest.approx(share * row["joules_per_step"])


def test_shorter_steps_of_a_long_run_change_times_and_energies_but_not_powers(rails: list[RailFit]) -> None:
    rail = replace(rails[0], idle_w=1.0)
    assert rail.fit is not None
    halved = replace(rail, fit=scale_to_whole_run(rail.fit, 0.5, 0.5))
    for by in ("kind", "component"):
        before, after = energy_by([rail], by).sort("name"), energy_by([halved], by).sort("name")
        assert after["watts"].to_list() == pytest.approx(before["watts"].to_list())
        for name in ("joules_per_step", "seconds_per_step", "above_idle"):
            assert after[name].to_list() == pytest.approx((before[name] / 2).to_list())
    single = np.eye(len(rail.fit.joules))
    supposed = [group_energies(fit, single).supposed.tolist() for fit in (rail.fit, scale_to_whole_run(rail.fit, 9, 1))]
    assert supposed[0] == supposed[1]
    assert 0 < sum(supposed[0]) < len(single)


def test_estimates_are_handed_out_by_the_model_method_alone(rails: list[RailFit]) -> None:
    assert energy_by(rails, "kind", "model").is_empty()


def test_unknown_words_are_refused_with_the_known_ones(rails: list[RailFit]) -> None:
    with pytest.raises(UnknownName, match="modul"):
        energy_by(rails, "modul")
    with pytest.raises(UnknownName, match="nearst"):
        energy_by(rails, "kind", "nearst")


def test_readings_of_a_sensor_that_sticks_are_left_out_and_said(tmp_path: Path) -> None:
    path = powered_run(tmp_path, steps=400)
    sound = Run(path).energy(by="kind")
    samples = path / "samples" / "power.parquet"
    frame = pl.read_parquet(samples)
    at = len(frame) // 2
    held = pl.when(pl.int_range(pl.len()) >= at).then(pl.lit(frame["vdd_in"][at])).otherwise(pl.col("vdd_in"))
    frame.with_columns(held.alias("vdd_in")).write_parquet(samples)
    run = Run(path)
    (row,) = run.energy_resolution().to_dicts()
    assert row["stuck_s"] == pytest.approx((frame["t0_ns"][-1] - frame["t0_ns"][at]) / 1e9, abs=0.05)
    assert row["readings"] < 0.6 * len(frame)
    assert "stood still for" in resolution_sentences(run.energy_resolution())[0]
    both = sound.join(run.energy(by="kind"), on="name").filter(verdict_right="resolved")
    assert len(both) > 0
    for now in both.to_dicts():
        assert now["joules_per_step_right"] == pytest.approx(now["joules_per_step"], rel=0.1)


def test_a_rail_that_rests_before_the_training_did_not_stand_still(tmp_path: Path) -> None:
    path = powered_run(tmp_path, steps=200)
    samples = path / "samples" / "power.parquet"
    frame = pl.read_parquet(samples)
    period = int(frame["t0_ns"][1] - frame["t0_ns"][0])
    rest = frame.head(1).select(pl.all().repeat_by(500).explode()).with_columns(vdd_in=pl.lit(1.5))
    before = pl.int_range(500, 0, -1, dtype=pl.Int64, eager=True) * period
    rest = rest.with_columns(pl.col("t0_ns", "t1_ns") - before)
    pl.concat([rest, frame]).write_parquet(samples)
    (row,) = Run(path).energy_resolution().to_dicts()
    assert row["stuck_s"] == 0
    assert row["resolved_share"] > 0.9


def test_what_lies_between_the_steps_is_said_where_it_is_much() -> None:
    names = pl.Series(["aten::mm", "(between steps)", "(pauses between steps)"])
    kinds = pl.DataFrame({"rail": ["VDD_IN"] * 3, "name": names, "joules_per_step": [0.9, 0.02, 0.08]})
    (said,) = between_steps_sentences(kinds, "VDD_IN")
    assert said.startswith("VDD_IN: 100 mJ of 1 J a step lie between the steps")
    assert between_steps_sentences(kinds.filter(names == "aten::mm"), "VDD_IN") == []


def test_a_sum_of_operators_that_the_readings_alone_contradict_says_why() -> None:
    kinds = pl.DataFrame(
        {"rail": ["VDD_IN"] * 2, "name": ["aten::mm", "(between steps)"], "joules_per_step": [1.0, 0.3]}
    )

    def sentences(alone: float | None, method: str = "fit") -> list[str]:
        rails = {"rail": ["VDD_IN"], "joules_per_step": [alone], "joules_per_step_low": [0.0],
                 "joules_per_step_high": [3.0]}  # fmt: skip
        tables = SimpleNamespace(rails=pl.DataFrame(rails, schema_overrides={"joules_per_step": pl.Float64}))
        run: Any = SimpleNamespace(attribution=method, energy_tables=tables)
        return fit_against_readings_sentences(run, kinds, "VDD_IN")

    (said,) = sentences(0.75)
    assert said.startswith("VDD_IN: operators sum to 1 J a step")
    assert "750 mJ [0, 3,000]" in said
    assert sentences(1.02) == sentences(None) == sentences(0.75, "model") == []
