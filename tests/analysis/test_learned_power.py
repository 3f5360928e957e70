"""A power model that other runs taught: true where power follows use, as unsure as the runs differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analysis.powered import TX2, channel, powered, rail, times, total
from tests.fabricate import Core, Sampled

import stepscope
from stepscope.analysis.energy.learned_power import learn_power_model
from stepscope.analysis.energy.power_model import ComponentPower, PowerModel, parse_power_model
from stepscope.analysis.run import Run
from stepscope.errors import UsageError

T = times(100)


def measured(out: Path, use: float, watts: float, **more: object) -> Run:
    """A run whose two cores are this busy, beside a meter of the whole module; its batch size is of its folder."""
    how = {"device": TX2, "cores": (Core(use), Core(use)), "batch": sum(out.name.encode()), **more}
    return powered(out, rail("VDD_IN", watts, T), **how)  # type: ignore[arg-type]


def _with_gpu(out: Path, gpu: Sampled, use: float, watts: float) -> Run:
    how = {"device": TX2, "cores": (Core(use), Core(use)), "batch": sum(out.name.encode())}
    return powered(out, rail("VDD_IN", watts, T), gpu, **how)  # type: ignore[arg-type]


def _gpu(use: float) -> Sampled:
    return Sampled(channel("nvml.busy", "utilisation", "gpu:0", sensor="nvml"), T, np.full(len(T), use))


def learned(tmp_path: Path, points: list[tuple[float, float]]) -> str:
    return stepscope.learn_power_model(*(measured(tmp_path / str(at), *point) for at, point in enumerate(points)))


def test_rest_and_busy_power_of_a_device_that_follows_its_use_are_found(tmp_path: Path) -> None:
    spec = parse_power_model(learned(tmp_path, [(use, 3 + 9 * use) for use in (0.2, 0.5, 0.8, 1.0)]))
    (cpu,) = spec.parts
    assert [cpu.idle_w, cpu.busy_w] == pytest.approx([3, 12], rel=0.03)
    assert spec.uncertainty is not None
    assert spec.uncertainty < 0.03
    assert list(spec.seen_use or ()) == pytest.approx([0.2, 1.0], abs=0.02)


def test_the_uncertainty_is_what_runs_that_were_left_out_show(tmp_path: Path) -> None:
    alike = [(0.6, watts) for watts in (9.0, 10.0, 11.0, 10.5)]  # one use, a power that it does not tell
    spec = parse_power_model(learned(tmp_path, alike))
    errors = [watts / np.mean([other for _, other in alike if other != watts]) - 1 for _, watts in alike]
    assert spec.uncertainty == pytest.approx(3.182 * np.sqrt(np.mean(np.square(errors))), rel=0.05)


def test_a_training_that_was_repeated_does_not_make_the_uncertainty_less(tmp_path: Path) -> None:
    points = [(0.5, 7.0), (0.7, 10.2), (0.9, 11.5)]
    once = [measured(tmp_path / str(at), *point) for at, point in enumerate(points)]
    again = [
        measured(tmp_path / f"{at}-{more}", *points[at], batch=sum(str(at).encode()))
        for at in range(3)
        for more in "ab"
    ]
    known, repeated = (parse_power_model(stepscope.learn_power_model(*runs)) for runs in (once, [*once, *again]))
    assert known.uncertainty is not None
    assert repeated.uncertainty == pytest.approx(known.uncertainty, rel=0.02)


def test_a_gpu_that_does_nothing_is_in_no_model_and_what_is_said_can_be_read(tmp_path: Path) -> None:
    gpu = Sampled(channel("nvml.busy", "utilisation", "gpu:0", sensor="nvml"), T, np.zeros(len(T)))
    points = [(use, 3 + 9 * use) for use in (0.2, 0.5, 0.8, 1.0)]
    runs = [_with_gpu(tmp_path / str(at), gpu, *point) for at, point in enumerate(points)]
    spec = stepscope.learn_power_model(*runs)
    assert "gpu" not in spec
    assert str(parse_power_model(spec)) == spec


def test_powers_of_any_size_are_read_as_they_are_written() -> None:
    small = PowerModel((ComponentPower("cpu", 1e-5, 12.0),), 3e-7, (1e-8, 1.0))
    assert parse_power_model(str(small)) == small
    with_gpu = replace(small, seen_gpu_use=(0.1, 0.25))
    assert parse_power_model(str(with_gpu)) == with_gpu


def test_a_run_without_a_meter_gets_the_interval_of_the_model_and_says_where_it_is_from(tmp_path: Path) -> None:
    spec = learned(tmp_path, [(0.5, 7.0), (0.7, 10.2), (0.9, 11.5), (0.3, 5.6)])
    share = parse_power_model(spec).uncertainty
    assert share is not None
    run = powered(tmp_path / "new", cores=(Core(0.6), Core(0.6)), header={"power_model": spec})
    row = total(run, "cpu", "estimated")
    assert row["watts_low"] == pytest.approx(row["watts_mean"] * (1 - share), rel=0.02)
    assert row["high"] == pytest.approx(row["joules"] * (1 + share), rel=0.02)
    assert row["joules_per_step_low"] < row["joules_per_step"] < row["joules_per_step_high"]
    assert any("the CI is its own" in note for note in run.energy_tables.notes)


def test_a_training_that_uses_the_processor_otherwise_has_no_interval_and_the_report_says_why(tmp_path: Path) -> None:
    run = powered(tmp_path, cores=(Core(1.0), Core(1.0)), header={"power_model": "cpu=2W..12W+-8%at20%..40%"})
    assert total(run, "cpu", "estimated")["low"] is None
    assert any("used at 100 %" in note for note in run.energy_tables.notes)


def test_a_training_that_uses_the_gpu_otherwise_has_no_interval_though_the_processor_does_as_it_did(
    tmp_path: Path,
) -> None:
    points = [(use, 3 + 9 * use + 0.1 * at) for at, use in enumerate((0.3, 0.6, 0.9))]
    spec = stepscope.learn_power_model(
        *(_with_gpu(tmp_path / str(at), _gpu(0.5), *point) for at, point in enumerate(points))
    )
    assert parse_power_model(spec).seen_gpu_use == (0.5, 0.5)
    for use, known in ((0.5, True), (1.0, False)):
        cores, header = (Core(0.6), Core(0.6)), {"power_model": spec}
        new = powered(tmp_path / f"new{use}", _gpu(use), steps=40, cores=cores, header=header)
        assert (total(new, "cpu", "estimated")["low"] is not None) == known
        assert any("the GPU was used" in note for note in new.energy_tables.notes) != known


@pytest.mark.parametrize(("seen", "sampled"), [("", (_gpu(0.9),)), ("gpu50%..60%", ())])
def test_a_gpu_of_which_the_model_or_the_run_knows_nothing_leaves_no_interval(
    tmp_path: Path, seen: str, sampled: tuple[Sampled, ...]
) -> None:
    header = {"power_model": f"cpu=2W..12W+-8%at20%..90%{seen}"}
    run = powered(tmp_path, *sampled, steps=40, cores=(Core(0.5), Core(0.5)), header=header)
    assert total(run, "cpu", "estimated")["low"] is None


def test_too_few_runs_of_several_devices_without_a_total_or_that_follow_nothing_are_refused(tmp_path: Path) -> None:
    good = [measured(tmp_path / name, use, 3 + 9 * use).path for name, use in (("a", 0.3), ("b", 0.6), ("c", 0.9))]
    other = measured(tmp_path / "other", 0.5, 7, device={**TX2, "machine": "x86_64"}).path
    silent = powered(tmp_path / "silent", device=TX2).path
    simulated = measured(tmp_path / "simulated", 0.5, 7, header={"simulated": "jetson-tx2"}).path
    again = [measured(tmp_path / name, 0.3, 5.8, batch=sum(b"a")).path for name in ("d", "e")]
    desk = channel("wall", "power", "wall:desk", sensor="shelly", parent_scope="system")
    plug = Sampled(desk, T, np.full(len(T), 12.0))
    plugged = powered(tmp_path / "plugged", plug, device=TX2, cores=(Core(0.4), Core(0.4)), batch=7).path
    strange = [measured(tmp_path / f"s{watts}", 0.6, watts).path for watts in (1.0, 40.0, 0.2)]
    for paths, why in (
        (good[:2], "at least 3 different trainings, not 2"),
        ([*good[:2], *again], "at least 3 different trainings; of these 4, 2 differ"),
        ([*good, plugged], "different things: VDD_IN; wall:desk"),
        ([*good, other], "different devices"),
        ([*good, silent], "no measured power"),
        ([*good, simulated], "simulated"),
        (strange, "no model"),
    ):
        with pytest.raises(UsageError, match=why) as refused:
            learn_power_model(paths)
        assert refused.value.hint
