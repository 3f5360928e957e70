"""A calibration against a meter: gain, offset, delay and window come back; what cannot be calibrated is refused."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.analysis.powered import TX2, powered, rail, times, total
from tests.patience import HANG_S

import stepscope
from stepscope.analysis.energy.accuracy import GPU_LINES, _gpu_accuracy, accuracy_of
from stepscope.analysis.energy.power_sources import power_sources
from stepscope.api import calibration as api
from stepscope.errors import UsageError
from stepscope.record import diagnosis
from stepscope.record.diagnosis import diagnose
from stepscope.record.sampler import calibration, loop
from stepscope.record.sampler.calibration import (
    Calibration,
    LoadRecording,
    align_log_to_load,
    calibrate_channels,
    load_calibrations,
    refused_calibrations,
    save_calibrations,
    square_load,
    with_calibrations,
)
from stepscope.record.sensors import Survey
from stepscope.record.sensors.contract import Channel, NoSensor, OpenSensor, Target

GAIN, OFFSET_W, DELAY_S, WINDOW_S = 0.95, -1.2, 0.04, 0.1
SECONDS = 60.0
CHANNEL = Channel("ina3221.VDD_IN.power", "ina3221", "power", "W", "gauge", "rail:VDD_IN", "synthetic")
LOAD = square_load(0, SECONDS)


def _busy(t_s: np.ndarray, width_s: float) -> np.ndarray:
    """Share of the load in the window that ends at each time."""
    fine = np.arange(-5, SECONDS + 5, 0.002)
    on = np.zeros(len(fine))
    for begin, end in LOAD:
        on[(fine >= begin / 1e9) & (fine < end / 1e9)] = 1
    area = np.append(0.0, np.cumsum(on) * 0.002)
    edges = np.append(fine, fine[-1] + 0.002)
    return np.asarray((np.interp(t_s, edges, area) - np.interp(t_s - width_s, edges, area)) / width_s)


def _sensor(seed: int = 0, gain: float = GAIN) -> list[tuple[int, float]]:
    """A gauge that is updated every 20 ms, its window WINDOW_S, DELAY_S late."""
    t_s = np.arange(0, SECONDS, 0.02)
    truth = 5 + 20 * _busy(t_s - DELAY_S, WINDOW_S)
    shown = OFFSET_W + gain * truth + np.random.default_rng(seed).normal(0, 0.05, len(t_s))
    return list(zip((t_s * 1e9).astype(int).tolist(), shown.tolist(), strict=True))


def _plug(late_s: float = 1.2) -> list[tuple[int, float]]:
    """A plug that says tenths of a watt each second."""
    t_s = np.arange(-3, SECONDS + 3, 1.0)
    shown = np.round(5 + 20 * _busy(t_s - late_s, 0.5), 1)
    return list(zip((t_s * 1e9).astype(int).tolist(), shown.tolist(), strict=True))


def _recorded(readings: list[tuple[int, float]]) -> LoadRecording:
    return LoadRecording(LOAD, int(SECONDS * 1e9), {CHANNEL.id: readings})


def test_gain_offset_delay_and_window_come_back() -> None:
    inside = 0
    for seed in range(6):
        found, refused = calibrate_channels(_recorded(_sensor(seed)), [CHANNEL], _plug(), "plug", 0.01)
        assert not refused
        kept = found[CHANNEL.id]
        assert kept.gain == pytest.approx(GAIN, rel=0.01)
        assert kept.offset_w == pytest.approx(OFFSET_W, abs=0.2)
        assert kept.filter == "block average"
        assert kept.window_ns == pytest.approx(WINDOW_S * 1e9, rel=0.15)
        assert kept.delay_ns == pytest.approx(DELAY_S * 1e9, abs=0.01e9)
        inside += abs(kept.gain - GAIN) <= kept.gain_half
    assert inside >= 4


def test_a_log_with_a_clock_of_its_own_is_laid_over_the_load() -> None:
    log = [(t / 1e9 + 5000.0, watts) for t, watts in _plug(0.0)]
    laid = align_log_to_load([t for t, _ in log], [w for _, w in log], False, LOAD, int(SECONDS * 1e9))
    assert abs(laid[0][0] - (-3.0e9)) < 0.6e9
    found, _ = calibrate_channels(_recorded(_sensor()), [CHANNEL], laid, "log", 0.01)
    assert found[CHANNEL.id].gain == pytest.approx(GAIN, rel=0.01)


def test_in_a_log_of_a_day_the_load_is_the_last_minute_and_not_one_like_it_before() -> None:
    day = [(float(t), 5.0 + t % 7 / 10) for t in range(-86400, -3)]
    before = [(t / 1e9 - SECONDS - 10, watts) for t, watts in _plug(0.0)]  # a calibration that was made just now
    last = [(t / 1e9, watts) for t, watts in _plug(0.0)]
    log = [*(row for row in day if row[0] < before[0][0]), *before, *last]
    laid = align_log_to_load([t + 9e4 for t, _ in log], [w for _, w in log], False, LOAD, int(SECONDS * 1e9))
    assert abs(laid[-1][0] - last[-1][0] * 1e9) < 0.6e9
    found, _ = calibrate_channels(_recorded(_sensor()), [CHANNEL], laid, "log", 0.01)
    assert found[CHANNEL.id].gain == pytest.approx(GAIN, rel=0.01)


@pytest.mark.parametrize(
    ("meter", "why"),
    [
        ([], "no overlap in time"),
        ([(t + 10**12, w) for t, w in _plug()], "no overlap in time"),
        ([(t, 7.0) for t, _ in _plug()], "7 W all the time"),
        ([(t, 5 + (t // 10**9 * 7 % 5)) for t, _ in _plug()], "does not follow the load"),
    ],
)
def test_a_meter_that_says_nothing_of_this_load_is_refused(meter: list[tuple[int, float]], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        calibrate_channels(_recorded(_sensor()), [CHANNEL], meter, "plug", 0.01)


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        ([(t, 3.0) for t, _ in _sensor()], "it does not move"),
        (_sensor(gain=1e-9), "it does not follow the load"),
    ],
)
def test_a_rail_that_the_load_does_not_move_is_named_with_why(readings: list[tuple[int, float]], why: str) -> None:
    found, refused = calibrate_channels(_recorded(readings), [CHANNEL], _plug(), "plug", 0.01)
    assert not found
    assert refused == {CHANNEL.id: why}


def test_a_calibration_is_kept_for_the_device_and_goes_into_the_channels_and_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(diagnosis, "_torch", lambda: {})  # importing it takes seconds
    assert load_calibrations(tmp_path) == {}
    found, _ = calibrate_channels(_recorded(_sensor()), [CHANNEL], _plug(), "plug", 0.01)
    path = save_calibrations(tmp_path, found)
    assert load_calibrations(tmp_path) == found
    seen = Survey({"ina3221": OpenSensor((CHANNEL,), lambda: [1.0], lambda: None)}, {})
    (channel,) = with_calibrations(seen, tmp_path).sensors["ina3221"].channels
    assert channel.calibration == asdict(found[CHANNEL.id])
    assert diagnose(tmp_path)[0]["calibrated"] == {CHANNEL.id: asdict(found[CHANNEL.id])}
    path.write_text("{")
    assert load_calibrations(tmp_path) == {}


def _kept(channel: Channel) -> Calibration:
    facts = calibration._channel_facts(channel)
    return Calibration(0.95, 0.01, 15.0, 16.0, 0.1, 0.01, 9, None, None, None, "plug", "2026-01-01", facts)


def test_a_calibration_is_of_this_very_device_and_channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(diagnosis, "_torch", lambda: {})
    first, second = (tmp_path / name for name in ("first", "second"))
    for place, serial in ((first, "1421\0"), (second, "1422\0")):
        (place / "proc/device-tree").mkdir(parents=True)
        (place / "proc/device-tree/serial-number").write_text(serial)
        (place / "etc").mkdir()
        (place / "etc/machine-id").write_text("cloned with the card\n")
    plain = replace(CHANNEL, source="/sys/class/hwmon/hwmon3/power1_input (does not open for x)", rail="VDD_IN")
    save_calibrations(first, {CHANNEL.id: _kept(plain)})
    assert load_calibrations(second) == {}

    def applied(channel: Channel) -> dict[str, Any] | None:
        seen = Survey({"ina3221": OpenSensor((channel,), lambda: [1.0], lambda: None)}, {})
        return with_calibrations(seen, first).sensors["ina3221"].channels[0].calibration

    assert applied(replace(plain, source="/sys/class/hwmon/hwmon5/power1_input")) is not None
    other = replace(plain, source="/sys/class/hwmon/hwmon3/power2_input")
    assert applied(other) is None
    assert "power2_input" in refused_calibrations([other], first)[CHANNEL.id]
    assert applied(replace(plain, card="0000:65:00.0")) is None


def test_a_calibration_that_does_not_say_of_which_device_is_refused_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(diagnosis, "_torch", lambda: {})
    old = {name: value for name, value in asdict(_kept(CHANNEL)).items() if name != "channel"}
    path = calibration._calibration_file(calibration._kind_of_device(tmp_path))
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"format": 1, "channels": {CHANNEL.id: old}}))
    facts = diagnose(tmp_path)[0]
    assert facts["calibrated"] == {}
    assert "calibrate again" in facts["calibrations_refused"][CHANNEL.id]


def test_a_sensor_that_joins_in_mid_run_has_its_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    save_calibrations(tmp_path, {CHANNEL.id: _kept(CHANNEL)})
    seen = Survey({"ina3221": OpenSensor((CHANNEL,), lambda: [1.0], lambda: None)}, {})
    monkeypatch.setattr(loop, "survey_sensors", lambda *_: seen)
    late = loop.LateSensors({"ina3221": NoSensor("denied", "x")}, tmp_path, Target(1), lambda: 1, 0)
    late.collect()
    assert late._asking is not None
    late._asking.join(HANG_S)
    assert late.collect()["ina3221"].channels[0].calibration == asdict(_kept(CHANNEL))


def test_calibrate_keeps_what_the_minute_showed_and_refuses_without_meter_or_sensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("STEPSCOPE_ROOT", str(tmp_path))
    log = tmp_path / "plug.csv"
    log.write_text("time,power\n" + "".join(f"{t / 1e9 + 900:.1f},{watts}\n" for t, watts in _plug(0.0)))
    monkeypatch.setattr(
        api, "survey_sensors", lambda root, target: Survey({}, {"shelly": NoSensor("failed", "no route")})
    )
    with pytest.raises(UsageError, match="no sensor of power"):
        stepscope.calibrate(meter_csv=log)
    with pytest.raises(UsageError, match="does not answer: shelly: no route"):
        stepscope.calibrate(plug="shelly=192.0.2.1")
    with pytest.raises(UsageError, match="which meter"):
        stepscope.calibrate()
    with pytest.raises(UsageError, match="no meter log"):
        stepscope.calibrate(meter_csv=tmp_path / "none.csv")
    seen = Survey({"ina3221": OpenSensor((CHANNEL,), lambda: [1.0], lambda: None)}, {})
    monkeypatch.setattr(api, "survey_sensors", lambda root, target: seen)
    monkeypatch.setattr(api, "record_square", lambda *asked: _recorded(_sensor()))
    assert stepscope.calibrate(meter_csv=log, dry=True)[CHANNEL.id]["gain"] == pytest.approx(GAIN, rel=0.01)
    assert load_calibrations(tmp_path) == {}
    stepscope.calibrate(meter_csv=log)
    assert load_calibrations(tmp_path)[CHANNEL.id].meter == str(log)


def test_the_square_load_is_recorded_by_real_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calibration, "square_load", lambda start, seconds: [(start + 50_000_000, start + 150_000_000)])
    said: list[str] = []
    found = {"ina3221": OpenSensor((CHANNEL,), lambda: [3.0], lambda: None)}
    recorded = calibration.record_square(found, Target(1), 0.2, said.append)
    assert len(recorded.power[CHANNEL.id]) >= 3
    assert said


def test_the_second_ci_is_the_data_sheets_and_a_calibration_shrinks_it(tmp_path: Path) -> None:
    found, _ = calibrate_channels(_recorded(_sensor()), [CHANNEL], _plug(), "plug", 0.002)
    truth, t_ns = 10.0, times(100)
    shown = OFFSET_W + GAIN * truth
    plain = powered(tmp_path / "a", rail("VDD_IN", shown, t_ns, step_size=0.04), steps=100, device=TX2)
    kept = asdict(found[CHANNEL.id])
    mended = powered(tmp_path / "b", rail("VDD_IN", shown, t_ns, calibration=kept), steps=100, device=TX2)
    by_kind, by_meter = total(plain), total(mended)
    assert by_kind["meter_joules"] == pytest.approx(by_kind["joules"])
    assert by_kind["meter_high"] - by_kind["meter_joules"] > 0.01 * by_kind["joules"]
    true_j = truth * by_meter["covered_s"]
    assert by_meter["meter_low"] <= true_j <= by_meter["meter_high"]
    assert by_meter["meter_high"] - by_meter["meter_low"] < by_kind["meter_high"] - by_kind["meter_low"]
    assert "calibrated against plug" in by_meter["meter_source"]
    assert any("a meter in the supply line of VDD_IN" in note for note in plain.energy_tables.notes)


@pytest.mark.parametrize(
    ("sensor", "device", "shown_w", "meter_w", "half_w"),
    [
        ("nvml", {"accelerators": [{"name": "NVIDIA A100-PCIE-40GB"}]}, 189.6, 200.0, 10.0),
        ("nvml", {"accelerators": [{"name": "NVIDIA GeForce GTX 1080 Ti"}]}, 99.6, 100.0, 5.0),
        ("rapl", {"cpu": "Intel(R) Core(TM) i7-3770 CPU"}, 100.0, 100.0, 15.0),
        ("rapl", {"cpu": "Intel(R) Core(TM) i5-3320M CPU @ 2.60GHz"}, 100.0, 100.0, 15.0),
        ("rapl", {"cpu": "Intel(R) Core(TM) i7-3770K CPU @ 3.50GHz"}, 100.0, 100.0, 15.0),
        ("rapl", {"cpu": "Intel(R) Core(TM) i7-8650U CPU"}, 100.0, 100.0, 5.0),
        ("rapl", {"cpu": "AMD Ryzen 7 5800X"}, 100.0, 100.0, 15.0),
        ("shelly", {}, 100.0, None, None),
        ("tegrastats", {}, 100.0, None, None),  # its shunt resistors are not known, nor then its offset in W
    ],
)
def test_the_accuracy_of_a_kind_of_sensor_is_known_with_its_source(
    sensor: str, device: dict[str, object], shown_w: float, meter_w: float | None, half_w: float | None, tmp_path: Path
) -> None:
    run = powered(tmp_path, rail("VDD_IN", 5.0, times(20), sensor=sensor), steps=20)
    (source,) = power_sources(run)
    known = accuracy_of(source, device)
    if meter_w is None:
        assert known is None
    else:
        assert known is not None
        assert known.source
        assert known.at_meter(shown_w)[0] == pytest.approx(meter_w, rel=0.002)
        assert known.at_meter(shown_w)[1] == pytest.approx(half_w, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "shown_w", "meter_w"),
    [
        ("NVIDIA GeForce RTX 3090", 418.8, 441.0),
        ("NVIDIA GeForce RTX 3090", 128.2, 135.1),
        ("NVIDIA GeForce RTX 4090", 384.5, 388.0),
        ("NVIDIA GeForce RTX 4090", 51.8, 70.3),
        ("NVIDIA A100-PCIE-40GB", 189.8, 200.3),
        ("NVIDIA A100-PCIE-40GB", 59.9, 64.7),
        ("NVIDIA GeForce RTX 9999", 418.8, 441.0),
    ],
)
def test_the_ci_holds_for_plateaus_of_real_gpus_beside_a_meter(gpu: str, shown_w: float, meter_w: float) -> None:
    """The three step responses of github.com/JimZeyuYang/GPU_Power_Benchmark (MIT): 3.7 s of each plateau."""
    known = _gpu_accuracy({"accelerators": [{"name": gpu}]})
    watts, half = known.at_meter(shown_w)
    assert abs(watts - meter_w) <= half
    assert half < 0.14 * meter_w


@pytest.mark.parametrize(
    "gpu",
    [
        "NVIDIA RTX A1000 Laptop GPU",
        "NVIDIA RTX A1000",
        "Quadro P1000",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 2080 Ti with Max-Q Design",
        "NVIDIA GeForce RTX 3090 Ti",
    ],
)
def test_a_gpu_whose_name_contains_that_of_another_is_of_no_known_kind(gpu: str) -> None:
    assert "of other kinds" in _gpu_accuracy({"accelerators": [{"name": gpu}]}).source


def test_every_gpu_kind_has_a_gain_and_an_offset() -> None:
    assert len(GPU_LINES) == 16
    assert all(0.8 < gain < 1.2 and abs(offset) < 25 for gain, offset in GPU_LINES.values())


def test_a_counter_that_is_polled_late_now_and_then_shows_its_own_power() -> None:
    """Changes are seen up to a poll late, and the mean of rates over short times is too large."""
    chance = random.Random(1)
    polled, values, t = list[int](), list[float](), 0
    while t < 20_000_000_000:
        t += chance.randint(5_000_000, 9_000_000)
        polled.append(t)
        values.append(10.0 * (t // 15_000_000) * 0.015)
    trace: Any = SimpleNamespace(readings_of_channel=lambda _: (polled, values))
    readings = calibration._watts_of_channel(replace(CHANNEL, quantity="energy", unit="J", kind="counter"), trace, 0)
    assert statistics.fmean(watts for _, watts in readings) == pytest.approx(10.0, rel=0.003)
    assert len(readings) > 60
