"""Operators that launch kernels are no work of the CPU: rates, ceilings and causes are of where they computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.analysis.test_bottleneck import Machine
from tests.fabricate import CEILINGS, STEP, Op, Sampled, every_step, fabricate_run

from stepscope.analysis.device.ceilings import ceilings_remedy, roofline, roofs, why_no_ceilings
from stepscope.analysis.device.throttling import detect_throttling
from stepscope.analysis.run import Run
from stepscope.analysis.time.accelerators import accelerator_without_kernels, launched_kernels

_GPU = {**CEILINGS, "device": "cuda"}
_LAUNCHES = tuple(Op("aten::mm", "fc", "forward", 12, flops=2_000_000_000, bytes=4_000_000) for _ in range(400))


def _read(quantity: str, scope: str, value: Any, count: int = 100) -> Sampled:
    channel = {"id": f"{scope}.{quantity}", "quantity": quantity, "unit": "1", "kind": "gauge", "scope": scope}
    values = np.broadcast_to(np.array(value, dtype=np.float64), (count,)).copy()
    about = {**channel, "sensor": f"{scope}.{quantity}", "refresh_ns": 1000, "source": "synthetic"}
    return Sampled(about, np.arange(-2, count - 2) * 10_000_000, values)


def _run(
    out: Path,
    ops: tuple[Op, ...],
    *sampled: Sampled,
    residual_us: int = 300,
    machine: Machine | None = None,
    **device: Any,
) -> Run:
    cores = [{"core": core, "online": True, "max_frequency_hz": 2_000_000_000} for core in (0, 1)]
    channels = (*(machine or Machine()).sampled(), *sampled)
    about = {"cores": cores, **device}
    path = fabricate_run(
        out, steps=60, recorded=every_step, noise=0.02, ops=ops, residual_us=residual_us, sampled=channels,
        device=about, header={"threads": 1},
    )  # fmt: skip
    return Run(path)


def _launch(self_us: int, kernel_us: int, **stated: Any) -> Op:
    kernel = Op("sgemm", "fc", "forward", kernel_us, device="cuda:0", thread=7)
    return Op("aten::mm", "fc", "forward", self_us, (kernel,), **stated)


@pytest.mark.parametrize("ceilings", [CEILINGS, _GPU])
@pytest.mark.parametrize("waits", [(), (Op("aten::_local_scalar_dense", None, "other", 9000),)])
def test_launches_on_a_gpu_whose_kernels_were_not_recorded_are_bound_by_nothing(
    tmp_path: Path, ceilings: dict[str, Any], waits: tuple[Op, ...]
) -> None:
    run = _run(tmp_path, (*_LAUNCHES, *waits), _read("utilisation", "gpu:0", 0.98), ceilings=ceilings)
    verdict = run.verdict()
    assert (verdict.bound, verdict.confidence) == ("unknown", "none"), verdict.sentence
    assert "no kernel of the accelerator gpu:0 was recorded, which was busy 98 %" in verdict.sentence
    assert run.attained("operator").is_empty()
    assert roofline(run).is_empty()
    assert run.operators()["flops_per_s"].is_null().all()
    assert run.layers()["flops_per_s"].is_null().all()


def test_an_accelerator_is_known_by_what_the_training_stated_and_by_memory_that_torch_had_of_it(tmp_path: Path) -> None:
    def accelerator(name: str, *sampled: Sampled, header: dict[str, Any] | None = None, **device: Any) -> str | None:
        path = fabricate_run(tmp_path / name, steps=12, sampled=sampled, header=header, device=device)
        found = accelerator_without_kernels(Run(path))
        return None if found is None else found.name

    used = [{"index": 1, "used": True}]
    assert accelerator("cpu") is None
    assert accelerator("stated", header={"workload": {"name": "net", "device": "mps"}}) == "mps"
    assert accelerator("memory", header={"recorder": {"reserved_bytes": {"cpu": 5, "cuda:1": 1 << 21}}}) == "cuda:1"
    assert accelerator("card", accelerators_torch=used) == "cuda:1"
    assert accelerator("idle", _read("utilisation", "gpu:0", 0.0), accelerators_torch=used) is None
    assert accelerator("screen", _read("utilisation", "gpu:0", 0.1)) is None


def test_operators_far_faster_than_their_ceilings_are_evidence_against_these_and_not_for_a_bound(
    tmp_path: Path,
) -> None:
    quick = tuple(Op("aten::mm", "fc", "forward", 1000, flops=9_000_000, bytes=4_000) for _ in range(10))
    verdict = _run(tmp_path, quick).verdict()
    assert verdict.bound == "unknown", verdict.sentence
    assert "of another number format" in verdict.sentence


def test_kernels_beyond_the_peak_of_their_accelerator_are_held_against_no_ceiling(tmp_path: Path) -> None:
    verdict = _run(tmp_path, (_launch(9_100, 9_000, flops=60_000_000),), ceilings=_GPU, residual_us=0).verdict()
    assert verdict.bound == "unknown"
    assert "measured in another number format" in verdict.sentence
    assert "doctor" not in " ".join(verdict.next), "which measures the CPU"


def test_rates_of_an_operator_that_launches_kernels_are_over_the_time_of_its_kernels(tmp_path: Path) -> None:
    launch = Op("aten::linear", "fc", "forward", 50, (_launch(20, 5_000, flops=10_000_000, bytes=40_000),))
    run = _run(tmp_path, (launch, STEP[1]), ceilings=_GPU)
    rates = dict(run.operators().select("name", "flops_per_s").rows())
    assert rates["aten::mm"] == pytest.approx(2e9, rel=0.02)
    assert rates["aten::mkldnn_convolution"] == pytest.approx(2e9, rel=0.05), "of the CPU, by its own time"
    point = roofline(run).filter(pl.col("name") == "aten::mm").to_dicts()[0]
    assert (point["device"], point["bound_by"]) == ("cuda:0", "arithmetic")
    assert point["attained"] == pytest.approx(2 / 2.2, rel=0.02)
    assert roofs(run)["device"].to_list() == ["cuda:0", "cuda:0"]
    attained = {row["name"]: row for row in run.attained("operator").to_dicts()}
    assert attained["aten::mm"]["attained"] is None, "twice as fast as products were measured"
    assert set(attained) == {"aten::mm"}, "what the CPU computed is under no ceiling of the GPU"


def test_with_ceilings_of_the_cpu_what_leads_to_kernels_is_held_against_none(tmp_path: Path) -> None:
    wrapper = Op("aten::linear", "fc", "forward", 50, (_launch(80, 5_000, flops=10_000_000),), bytes=40_000_000)
    alone = (Op("aten::mkldnn_convolution", "features.0", "forward", 6_000, flops=12_000_000, bytes=50_000),)
    run = _run(tmp_path, (wrapper, *alone))
    assert set(run.attained("operator")["name"]) == {"aten::mkldnn_convolution"}
    assert set(run.attained("module")["name"]) == {"features.0"}


def test_kernels_belong_to_the_operator_that_states_their_work_at_any_height(tmp_path: Path) -> None:
    kernel = Op("flash", "fc", "forward", 4_000, device="cuda:0", thread=7)
    inner = Op("aten::_flash_attention_forward", "fc", "forward", 10, (kernel,))
    outer = Op("aten::scaled_dot_product_attention", "fc", "forward", 10, (inner,), flops=8_000_000)
    (row,) = launched_kernels(_run(tmp_path, (outer,))).to_dicts()
    assert (row["name"], row["device"]) == ("aten::scaled_dot_product_attention", "cuda:0")
    assert row["flops"] == pytest.approx(8_000_000)
    assert row["kernel_ns"] == pytest.approx(4e6, rel=0.02)


def test_the_rate_of_a_layer_is_over_the_kernels_that_do_its_work_and_not_over_its_update(tmp_path: Path) -> None:
    update = Op("adamw", "fc", "optimizer", 6_000, device="cuda:0", thread=7)
    ops = (_launch(50, 4_000, flops=8_000_000), Op("aten::_fused_adamw_", "fc", "optimizer", 50, (update,)))
    layer = _run(tmp_path, ops).layers().filter(pl.col("layer") == "fc").to_dicts()[0]
    assert layer["device_ns"] == pytest.approx(10e6, rel=0.02)
    assert layer["flops_per_s"] == pytest.approx(2e9, rel=0.02)


def test_an_accelerator_that_waits_for_python_is_not_bound_by_the_dispatch_of_operators(tmp_path: Path) -> None:
    ops = (_launch(1_600, 1_500, flops=10_000_000),)
    verdict = _run(tmp_path, ops, residual_us=14_000, ceilings=_GPU).verdict()
    assert (verdict.bound, verdict.causes[0].name) == ("overhead", "Python"), verdict.sentence
    many = tuple(_launch(100, 20) for _ in range(140))
    verdict = _run(tmp_path / "many", many, ceilings=_GPU).verdict()
    assert (verdict.bound, verdict.causes[0].name) == ("overhead", "dispatch"), verdict.sentence


def test_a_metric_on_a_gpu_makes_no_training_of_the_cpu_one_of_the_gpu(tmp_path: Path) -> None:
    verdict = _run(tmp_path, (*STEP, _launch(20, 5, flops=1000))).verdict()
    assert (verdict.bound, verdict.confidence) == ("compute", "high"), verdict.sentence


def test_kernels_without_any_operator_have_a_verdict(tmp_path: Path) -> None:
    kernel = Op("sgemm", "fc", "forward", 9_000, device="cuda:0", thread=7)
    verdict = _run(tmp_path, (kernel,), residual_us=7_000, ceilings=_GPU).verdict()
    assert verdict.bound == "unknown"


def test_a_gpu_at_its_power_cap_is_no_evidence_on_the_clock_of_the_cpu(tmp_path: Path) -> None:
    flags = _read("throttle_reasons", "gpu:0", [4] * 60 + [1] * 40)
    run = _run(tmp_path, (_launch(9_000, 8_000),), flags, machine=Machine(clocks=(1.3e9, 1.3e9)), residual_us=7_000)
    assert all(cause.bound != "throttled" for cause in run.verdict().causes), run.verdict().sentence


def test_a_gpu_that_heat_slows_down_is_throttled_in_headline_and_verdict(tmp_path: Path) -> None:
    flags = _read("throttle_reasons", "gpu:0", 0x20)
    run = _run(tmp_path, (_launch(9_000, 15_500),), flags, machine=Machine(clocks=(2e9, 2e9)), residual_us=7_000)
    assert detect_throttling(run)[0] is True
    verdict = run.verdict()
    assert (verdict.bound, verdict.causes[0].name) == ("throttled", "GPU clock"), verdict.sentence
    assert "graphics card" in verdict.next[0]


def test_ceilings_of_the_cpu_are_none_of_a_gpu_and_the_remedy_names_the_gpu(tmp_path: Path) -> None:
    run = _run(tmp_path, (_launch(100, 9_000, flops=1_000_000, bytes=1_000),))
    assert why_no_ceilings(run, "cuda:0") == "the ceilings of cuda:0 were not measured"
    assert "doctor --ceilings --device cuda:0 measures" in ceilings_remedy(run, "cuda:0")


def test_a_low_clock_of_the_cpu_throttles_no_training_whose_gpu_is_busy_by_its_own_gauge(tmp_path: Path) -> None:
    slow = Machine(clocks=(1e9, 1e9), limit=1e9)
    busy, idle = (
        _run(tmp_path / f"{share}", _LAUNCHES, _read("utilisation", "gpu:0", share), machine=slow)
        for share in (0.95, 0.0)
    )
    assert all(cause.bound != "throttled" for cause in busy.verdict().causes)
    assert any(cause.bound == "throttled" for cause in idle.verdict().causes)
