"""The roofline of a run."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.fabricate import CEILINGS, STEP, Op, every_step, fabricate_run

from stepscope.analysis.device.ceilings import ceilings_remedy, roofline, roofs, why_no_ceilings
from stepscope.analysis.run import Run
from stepscope.report.sections.roofline import build


def _run(folder: Path) -> Run:
    copied = Op("aten::add", "fc", "forward", 1_000, flops=1_000, bytes=4_000_000)
    return Run(fabricate_run(folder, steps=10, recorded=every_step, ops=(*STEP, copied)))


def test_a_point_is_what_the_ops_state_over_their_own_time(tmp_path: Path) -> None:
    points = {row["name"]: row for row in roofline(_run(tmp_path)).to_dicts()}
    conv = points["aten::mkldnn_convolution"]
    assert conv["flop_per_byte"] == pytest.approx(6_000_000 / 50_000)
    assert conv["flops_per_s"] == pytest.approx(6_000_000 / 3e-3)
    assert conv["bytes_per_s"] == pytest.approx(50_000 / 3e-3)


def test_kinds_that_state_no_bytes_are_left_out(tmp_path: Path) -> None:
    assert set(roofline(_run(tmp_path))["name"]) == {"aten::mkldnn_convolution", "aten::addmm", "aten::add"}


def test_the_roofs_are_those_of_the_device_and_no_point_lies_above_them(tmp_path: Path) -> None:
    run = _run(tmp_path)
    points = roofline(run)
    highest = {roof: value for _, roof, value, _ in roofs(run).rows()}
    assert highest == {"compute": 2.2e9, "memory": 8e9}
    bound_by = dict(points.select("name", "bound_by").rows())
    assert bound_by == {"aten::mkldnn_convolution": "arithmetic", "aten::addmm": "arithmetic", "aten::add": "memory"}
    attained = dict(points.select("name", "attained").rows())
    assert attained["aten::mkldnn_convolution"] == pytest.approx(2 / 2.2)
    assert attained["aten::add"] == pytest.approx(0.5)


def test_without_measured_ceilings_there_is_no_roof_and_no_side_of_it(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=10, recorded=every_step, device={"ceilings": None}))
    assert roofs(run).is_empty()
    assert roofline(run)["bound_by"].to_list() == [None, None]
    assert roofline(run)["attained"].to_list() == [None, None]


def test_a_run_whose_ops_state_nothing_has_no_points(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=10, ops=(Op("aten::relu", None, "forward", 100),)))
    assert roofline(run).is_empty()


def test_the_share_of_the_attainable_is_of_the_time_under_the_ceilings(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in _run(tmp_path).attained("operator").to_dicts()}
    assert rows["aten::mkldnn_convolution"]["attained"] == pytest.approx(2 / 2.2, rel=0.01)
    assert rows["aten::mkldnn_convolution"]["limit"] == "arithmetic"
    assert rows["aten::mm"]["attained"] == pytest.approx(2e6 / 1.2e9 / 1.78e-3, rel=0.01)
    assert rows["aten::clamp_min"]["attained"] is None
    assert {row["name"] for row in _run(tmp_path / "m").attained().to_dicts()} >= {"features.0", "fc"}


def test_ceilings_that_were_measured_under_load_are_withheld_with_all_that_is_built_on_them(tmp_path: Path) -> None:
    run = Run(
        fabricate_run(
            tmp_path, steps=10, recorded=every_step, device={"ceilings": {**CEILINGS, "run_queue_share": 0.83}}
        )
    )
    assert roofs(run).is_empty()
    assert run.attained("operator").is_empty()
    assert roofline(run)["attained"].to_list() == [None, None]
    assert why_no_ceilings(run).endswith("are withheld: their probe waited for a CPU core in 83 % of its time")
    verdict = run.verdict()
    assert verdict.bound not in ("compute", "memory-bandwidth", "kernels")
    assert "withheld" in verdict.sentence
    assert "withheld" in build(run).lede


def test_a_run_with_simulated_sensors_is_not_sent_to_measure_ceilings_that_it_would_never_have(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, header={"simulated": "jetson-tx2"}, device={"ceilings": None}))
    assert "simulated" in why_no_ceilings(run)
    assert "--simulate" in ceilings_remedy(run)


def test_flops_of_steps_whose_shapes_were_not_seen_are_unknown_and_not_0(tmp_path: Path) -> None:
    whole, half = (fabricate_run(tmp_path / name, steps=40, recorded=every_step) for name in ("whole", "half"))
    for file in (half / "ops").glob("*.parquet"):
        rows = pl.read_parquet(file)
        odd = pl.col("step") % 2 == 1
        unseen = [pl.when(odd).then(None).otherwise(name).alias(name) for name in ("flops", "bytes")]
        rows.with_columns(unseen).cast(rows.schema).write_parquet(file)
    before, after = Run(whole), Run(half)
    for table in ("operators", "modules"):
        stated = [getattr(run, table)()["flops"].fill_null(0).to_list() for run in (before, after)]
        assert stated[1] == pytest.approx(stated[0])
        assert max(stated[0]) > 0
    assert roofline(after)["flops_per_s"].to_list() == pytest.approx(roofline(before)["flops_per_s"].to_list())


def test_without_a_roof_of_the_memory_no_point_is_held_against_one(tmp_path: Path) -> None:
    disturbed = [{**row, "waited": 0.4 if row["bytes"] > 1e6 else 0.0} for row in CEILINGS["bandwidth"]]
    large = Op("aten::mul", "fc", "forward", 4_000, flops=1_000_000, bytes=8_000_000)
    ceilings = {**CEILINGS, "bandwidth": disturbed}
    run = Run(fabricate_run(tmp_path, steps=10, recorded=every_step, ops=(*STEP, large), device={"ceilings": ceilings}))
    assert roofs(run)["roof"].to_list() == ["compute"]
    assert roofline(run)["attained"].is_null().all()
    attained = {row["name"]: row for row in run.attained("operator").to_dicts()}
    assert attained["aten::mul"]["attained"] is None
    assert attained["aten::mkldnn_convolution"]["limit"] == "arithmetic", "however slow 50 kB are"
    assert run.verdict().sentence
    assert build(run).parts


def test_a_view_of_a_large_tensor_is_dispatch_and_no_traffic_at_the_ceiling_of_the_memory(tmp_path: Path) -> None:
    views = tuple(
        Op(f"aten::{name}", "fc", "forward", 4, bytes=33_554_432) for name in ("transpose", "as_strided", "view")
    )
    run = Run(fabricate_run(tmp_path, steps=10, recorded=every_step, ops=(*STEP, *views)))
    limits = dict(run.attained("operator").select("name", "limit").rows())
    assert {limits[view.name] for view in views} == {"dispatch"}


def test_layers_in_another_number_format_than_the_ceilings_are_not_held_against_them(tmp_path: Path) -> None:
    fast = Op("aten::mm", "fc", "forward", 2_000, flops=20_000_000)  # eight times what products reach in float32
    formats = {
        "flops_by_format": {"cpu": {"float32": 30_000_000, "bfloat16": 23_000_000}},
        "other_formats": [["aten::mm", "fc"], ["aten::addmm", "fc"]],
    }
    runs = [
        Run(fabricate_run(tmp_path / name, steps=60, recorded=every_step, ops=(*STEP, fast), header=header))
        for name, header in (("mixed", {"recorder": formats}), ("unknown", {}))
    ]
    mixed, unknown = ({row["name"]: row for row in run.attained().to_dicts()} for run in runs)
    assert unknown["fc"]["known"] > 0.9
    assert mixed["fc"]["known"] < 0.1, "its calls alone"
    assert mixed["features.0"] == pytest.approx(unknown["features.0"])
    points = {row["name"]: row for row in roofline(runs[0]).to_dicts()}
    assert (points["aten::addmm"]["attained"], points["aten::addmm"]["bound_by"]) == (None, None)
    assert points["aten::mkldnn_convolution"]["bound_by"] == "arithmetic"
    layers = {row["layer"]: row for row in runs[0].layers().to_dicts()}
    assert layers["fc"]["attained"] is None
    assert layers["features.0"]["attained"] > 0.8
    assert runs[0].verdict().bound == "compute"
    what = "share of the attainable of aten::addmm, aten::mm in 1 layer"
    assert [gap.detail for gap in runs[0].not_measured() if gap.what == what] == ["fc"]
