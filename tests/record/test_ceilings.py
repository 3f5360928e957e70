"""Ceilings are measured once a device, again where they were disturbed, and never beside a training."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fabricate import CEILINGS, fabricate_run

import stepscope
from stepscope.analysis.device.ceilings import ceilings_of, ceilings_remedy, read_ceilings, why_no_ceilings
from stepscope.analysis.run import Run
from stepscope.files import read_json
from stepscope.record import ceiling_probe, ceilings
from stepscope.runfolder.schema import PROBED


class Probe:
    """In the place of the child process: counts its calls; `quiet` is what it says of the machine."""

    def __init__(self) -> None:
        self.calls, self.quiet, self.faster = 0, 0.0, 1.0

    def __call__(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        found = copy.deepcopy(CEILINGS)
        for row in found["arithmetic"]:
            row["flops_per_s"] *= self.faster
        return {**found, **asked, "threads": asked["threads"] or 2, "run_queue_share": self.quiet}


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probe:
    made = Probe()
    monkeypatch.setattr(ceilings, "_run_probe", made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(ceilings.SWITCH, "on")
    return made


def test_they_are_measured_once_by_threads_and_precision(probe: Probe) -> None:
    for _ in range(2):
        ceilings.ceilings("cpu", "float32", 1)
    assert probe.calls == 1
    ceilings.ceilings("cpu", "bfloat16 (autocast)", 1)
    ceilings.ceilings("cpu", "float32", 2)
    assert probe.calls == 3
    assert ceilings.cached_ceilings("cpu", "bf16", 1) is not None


def test_a_disturbed_probe_is_made_again_later_and_the_highest_rate_is_kept(probe: Probe, tmp_path: Path) -> None:
    probe.quiet = 0.5
    for _ in range(2):
        ceilings.ceilings(threads=1)
    assert probe.calls == 1
    (kept,) = tmp_path.glob("cache/stepscope/ceilings/*.json")
    os.utime(kept, (0, time.time() - 4000))
    probe.quiet, probe.faster = 0.3, 0.5
    found = ceilings.ceilings(threads=1)
    assert probe.calls == 2
    assert found is not None
    assert max(row["flops_per_s"] for row in found["arithmetic"]) == 2.2e9
    assert found["run_queue_share"] == 0.3


def test_a_probe_that_met_load_in_its_largest_arrays_alone_is_made_again_later(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = copy.deepcopy(CEILINGS["bandwidth"])
    monkeypatch.setitem(CEILINGS, "bandwidth", [*quiet[:-1], {**quiet[-1], "waited": 0.4, "bytes_per_s": 1e9}])
    ceilings.ceilings(threads=1)
    (kept,) = tmp_path.glob("cache/stepscope/ceilings/*.json")
    os.utime(kept, (0, time.time() - 4000))
    monkeypatch.setitem(CEILINGS, "bandwidth", quiet)
    merged = ceilings.ceilings(threads=1)
    assert probe.calls == 2
    assert merged is not None
    assert not any(row.get("waited") for row in merged["bandwidth"])


def test_another_torch_or_clock_limit_is_measured_anew(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings.ceilings(threads=1)
    monkeypatch.setattr(ceilings, "installed_version", lambda name: "9.9")
    assert ceilings.cached_ceilings(threads=1) is None
    monkeypatch.undo()


def test_they_are_written_into_a_run_that_has_ended(tmp_path: Path, probe: Probe) -> None:
    run = fabricate_run(tmp_path / "runs", steps=6, device={"ceilings": None})
    ceilings.write_ceilings(run, measure=False)
    assert json.loads((run / "device.json").read_text())["ceilings"] is None
    ceilings.write_ceilings(run)
    written = json.loads((run / "device.json").read_text())
    assert written["ceilings"]["threads"] == 2
    assert written["board"] == {"name": "test board"}
    ceilings.write_ceilings(run)
    assert probe.calls == 1


def test_the_environment_turns_the_probe_off(tmp_path: Path, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ceilings.SWITCH, "off")
    ceilings.write_ceilings(fabricate_run(tmp_path / "runs", steps=6, device={"ceilings": None}))
    assert probe.calls == 0


def test_a_run_without_steps_or_of_a_simulated_board_gets_none(tmp_path: Path, probe: Probe) -> None:
    ceilings.write_ceilings(fabricate_run(tmp_path / "a", steps=0, ops=(), samples=False, device={"ceilings": None}))
    simulated: dict[str, Any] = {"header": {"simulated": "jetson-tx2"}, "device": {"ceilings": None}}
    ceilings.write_ceilings(fabricate_run(tmp_path / "b", steps=6, **simulated))
    assert probe.calls == 0


def test_a_run_that_never_stated_its_threads_gets_no_ceilings_of_others(tmp_path: Path, probe: Probe) -> None:
    run = fabricate_run(tmp_path / "runs", steps=6, device={"ceilings": None}, header={"threads": None})
    ceilings.write_ceilings(run)  # it left by os._exit(0), say
    assert probe.calls == 0
    assert json.loads((run / "device.json").read_text())["ceilings"] is None


def test_a_training_states_its_threads_once_it_is_warm_and_not_at_its_end_alone(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with stepscope.profile(model, out=tmp_path, record="none", memory="off") as scope:
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scope.step()
        (header,) = tmp_path.glob("*/run.json")
        assert read_json(header)["threads"] == torch.get_num_threads()
        assert "clock_end" not in read_json(header)


@pytest.mark.parametrize(
    ("workload", "accelerators", "ended", "device"),
    [
        ({"name": "script"}, [], {}, "cpu"),
        ({"name": "script"}, [{"name": "a GPU"}], {}, None),
        ({"name": "script"}, [{"name": "a GPU"}], {"at_end": {}}, "cpu"),
        ({"name": "lenet", "device": "cuda"}, [{"name": "a GPU"}], {}, "cuda"),
    ],
)
def test_a_killed_script_beside_a_gpu_gets_no_ceilings_of_the_processor(
    workload: dict[str, Any], accelerators: list[Any], ended: dict[str, Any], device: str | None
) -> None:
    conditions = ceilings._conditions_of_run(
        {"threads": 2, "workload": workload}, {"accelerators": accelerators, **ended}
    )
    assert (conditions and conditions[0]) == device


def test_the_probe_states_rates_by_size_and_the_fastest_block() -> None:
    rows = list(ceiling_probe.measure_arithmetic("cpu", ceiling_probe.DTYPES["float32"], lambda: None, sides=(16, 32)))
    products = [row for row in rows if row["kind"] == "gemm"]
    assert [row["flops"] for row in products] == [2 * 16**3, 2 * 32**3]
    assert all(row["flops_per_s"] > 0 for row in rows)
    assert {row["kind"] for row in rows} == {"gemm", "convolution", "convolution backward"}


def test_a_slow_device_is_asked_for_the_small_products_and_convolutions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling_probe, "time_fastest_block", lambda *asked: ceiling_probe.Timed(0.2, 0.0))
    rows = list(ceiling_probe.measure_arithmetic("cpu", ceiling_probe.DTYPES["float32"], lambda: None))
    assert [row["kind"] for row in rows] == ["gemm", "convolution", "convolution backward"]


def test_of_rates_that_were_disturbed_in_every_block_the_quiet_ones_of_their_kind_stay() -> None:
    def row(kind: str, waited: float) -> dict[str, Any]:
        return {"kind": kind, "waited": waited}

    rows = [row("gemm", 0.0), row("gemm", 0.4), row("copy", 0.02), row("copy", 0.05)]
    assert ceiling_probe.drop_disturbed_rates(rows) == ([rows[0], *rows[2:]], 0.05)
    nothing_quiet = [*rows, row("triad", 0.5), row("triad", 0.7)]
    assert ceiling_probe.drop_disturbed_rates(nothing_quiet)[1] == 0.7  # which withholds all


def test_a_block_in_which_the_probe_waited_gives_way_to_a_slower_one_that_was_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = iter([ceiling_probe.Timed(1.0, 0.5), ceiling_probe.Timed(3.0, 0.0)] * 1000)
    monkeypatch.setattr(ceiling_probe, "_time_block", lambda call, calls, wait: next(blocks))
    assert ceiling_probe.time_fastest_block(lambda: None, seconds=0.0).seconds == 3.0


def test_the_bandwidth_of_memory_is_unknown_where_the_arrays_that_no_cache_holds_were_disturbed() -> None:
    rows = [
        {"kind": kind, "bytes": size, "bytes_per_s": 8e10 if size < 1e7 else 1e10, "waited": 0.0 if size < 1e7 else 0.3}
        for kind in ("copy", "triad", "fresh")
        for size in (131_072, 8_388_608, 67_108_864)
    ]
    stated, share = ceiling_probe.drop_disturbed_rates(rows)
    assert share == 0.0
    limits = read_ceilings({**CEILINGS, "bandwidth": stated})
    assert limits.peak_bytes_per_s is None, "that of a cache is none"
    times_ns = limits.memory_ns(np.array([65_536.0, 30e6]))
    assert times_ns[0] == pytest.approx(65_536 / 4e10 * 1e9)
    assert np.isnan(times_ns[1])
    quiet = [{**row, "waited": 0.0} for row in rows]
    assert read_ceilings({**CEILINGS, "bandwidth": quiet}).peak_bytes_per_s == 1e10


def _recorder(**flops_by_device: dict[str, int]) -> dict[str, Any]:
    flops = {name.replace("_", ":"): counts for name, counts in flops_by_device.items()}
    return {"recorder": {"mode": "adaptive", "flops_by_format": flops}, "workload": {"name": "train"}}


def test_ceilings_of_a_script_are_of_the_device_and_format_of_most_of_its_flops(tmp_path: Path, probe: Probe) -> None:
    header = _recorder(cpu={"float32": 5}, cuda_1={"float32": 7, "bfloat16": 90})
    run = fabricate_run(tmp_path / "runs", steps=6, device={"ceilings": None}, header=header)
    ceilings.write_ceilings(run)
    written = json.loads((run / "device.json").read_text())["ceilings"]
    assert (written["device"], written["precision"]) == ("cuda:1", "bfloat16")
    assert ceilings.cached_ceilings("cuda:1", "bf16", 2) is not None


def test_the_card_that_a_script_chose_is_probed_and_not_that_of_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that sets CUDA_VISIBLE_DEVICES itself calls another card cuda:0 than the process that started it."""
    commands: list[tuple[dict[str, Any], str]] = []

    def run(command: list[str], env: dict[str, str], **_options: Any) -> subprocess.CompletedProcess[str]:
        commands.append((json.loads(command[-1]), env["CUDA_VISIBLE_DEVICES"]))
        return subprocess.CompletedProcess(command, 0, json.dumps({**CEILINGS, "threads": 2, "device": "cuda:0"}), "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(ceilings, "temperatures_and_clocks", lambda: {"frequencies_hz": {}})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(ceilings.SWITCH, "on")
    for number, card in enumerate(("0000:65:00.0 a1b2c3d4", "0000:b3:00.0 e5f60718")):
        device = {"ceilings": None, "accelerators_torch": [{"index": 0, "name": "a GPU", "card": card}]}
        path = tmp_path / str(number)
        path.mkdir()
        path = fabricate_run(path, steps=6, device=device, header=_recorder(cuda_0={"float32": 7}))
        ceilings.write_ceilings(path)
        assert json.loads((path / "device.json").read_text())["ceilings"]["device"] == "cuda:0"
    assert [stated["device"] for stated, _ in commands] == ["cuda:0", "cuda:0"]
    assert [card for _, card in commands] == ["GPU-a1b2c3d4", "GPU-e5f60718"]


def test_a_training_in_a_format_that_no_probe_computes_in_gets_no_ceilings(tmp_path: Path, probe: Probe) -> None:
    header = _recorder(cuda_0={"float8_e4m3fn": 90, "bfloat16": 7})
    run = Run(fabricate_run(tmp_path / "runs", steps=6, device={"ceilings": None}, header=header))
    ceilings.write_ceilings(run.path)
    assert probe.calls == 0
    assert why_no_ceilings(run) == "most FLOPs of this training are in float8_e4m3fn, and none are measured in it"
    assert "bfloat16" in ceilings_remedy(run)


def test_ceilings_of_another_format_than_the_training_computes_in_are_withheld(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path, steps=6, header=_recorder(cpu={"bfloat16": 90, "float32": 7})))
    assert ceilings_of(run) is None
    assert why_no_ceilings(run).endswith("are in bfloat16, and the ceilings in this run are of float32")
    assert "doctor --ceilings --precision bfloat16 measures" in ceilings_remedy(run)
    same = Run(fabricate_run(tmp_path / "same", steps=6, header=_recorder(cpu={"bfloat16": 7, "float32": 90})))
    assert ceilings_of(same) is not None


def test_the_first_accelerator_is_one_device_with_or_without_its_number(probe: Probe) -> None:
    ceilings.ceilings("cuda", "fp16", 2)
    assert ceilings.cached_ceilings("cuda:0", "float16", 2) is not None
    assert ceilings.cached_ceilings("cuda:1", "float16", 2) is None


def test_the_probe_lets_products_round_as_the_training_did() -> None:
    mode = torch.get_float32_matmul_precision()
    try:
        ceiling_probe._set_float32_switches("float32-high")
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(mode)
    assert set(PROBED) == set(ceiling_probe.DTYPES)
