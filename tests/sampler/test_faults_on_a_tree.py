"""The real sampling process on a tree of files that break, vanish, come back and turn up late."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import HANG_S, until

from stepscope.record.sampler.characterise import SensorProfile, device_identity, save_profiles
from stepscope.record.sampler.process import Sampler, start_sampler
from stepscope.record.sensors import load_sensors
from stepscope.record.sensors.contract import OpenSensor, Target
from stepscope.record.settings import Metering
from stepscope.runfolder import RunReader

ZONE = "sys/class/thermal/thermal_zone0"
MS = 1_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text('{"schema": 1, "id": "x", "status": "ok"}')
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    zone = tmp_path / "root" / ZONE
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu-thermal\n")
    (zone / "temp").write_text("42500\n")
    return tmp_path / "root"


Start = Callable[..., Sampler]


@pytest.fixture
def start(run: Path, root: Path) -> Iterator[Start]:
    running: list[Sampler] = []

    def begin(**options: Any) -> Sampler:
        running.append(start_sampler(run, 5 * MS, root=root, look_again_ns=20 * MS, **options))
        return running[-1]

    yield begin
    for sampler in running:
        assert sampler.stop().exit_code == 0


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in RunReader(run).events if event["kind"] == kind]


def rapl(root: Path) -> Path:
    zone = root / "sys/class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    (zone / "energy_uj").write_text("1000000\n")
    return zone


def last_temperature(run: Path) -> float | None:
    values = RunReader(run).sensor("temperature")["zone.cpu-thermal.temperature"]
    value: float | None = values[-1] if len(values) else None
    return value


def test_garbage_in_a_file_is_a_null_and_then_an_event_and_a_number_ends_it(
    start: Start, run: Path, root: Path
) -> None:
    start()
    until(lambda: last_temperature(run) == 42.5)
    (root / ZONE / "temp").write_text("hot\n")
    until(lambda: events(run, "channel-lost"))
    assert last_temperature(run) is None
    (root / ZONE / "temp").write_text("43000\n")
    until(lambda: events(run, "channel-recovered"))
    assert events(run, "channel-recovered")[0]["gap_ns"] >= 1_000 * MS
    until(lambda: last_temperature(run) == 43.0)


def test_a_power_sensor_that_turns_up_in_mid_run_joins_it(start: Start, run: Path, root: Path) -> None:
    sampler = start()
    before = json.loads((run / "channels.json").read_text())
    assert "rapl" in {entry["sensor"] for entry in before["missing"]}
    rapl(root)
    until(lambda: events(run, "sensor-joined"))
    until(lambda: RunReader(run).sensor("rapl").height > 3)
    after = json.loads((run / "channels.json").read_text())
    assert "rapl" not in {entry["sensor"] for entry in after["missing"]}
    assert [c["quantity"] for c in after["channels"] if c["sensor"] == "rapl"] == ["energy"]
    assert RunReader(run).samples("energy")["value"].drop_nulls().unique().to_list() == [1.0]
    assert sampler.alive()


def test_a_power_sensor_that_is_unplugged_leaves_a_gap_and_comes_back(start: Start, run: Path, root: Path) -> None:
    zone = rapl(root)
    start()
    until(lambda: RunReader(run).sensor("rapl").height > 3)
    (zone / "energy_uj").write_text("")
    until(lambda: events(run, "sensor-lost"))
    shutil.rmtree(zone)
    zone = rapl(root)
    (zone / "energy_uj").write_text("2000000\n")
    until(lambda: events(run, "sensor-recovered"))
    until(lambda: RunReader(run).samples("energy")["value"][-1] == 2.0)
    values = RunReader(run).samples("energy")["value"]
    assert values.null_count() > 0
    assert set(values.drop_nulls().unique()) == {1.0, 2.0}  # nothing in between, and no 0


@pytest.mark.parametrize(("make", "unmake"), [(os.mkfifo, os.unlink), (os.mkdir, os.rmdir)])
def test_a_pipe_or_a_folder_in_place_of_a_counter_stops_neither_the_others_nor_the_end(
    make: Callable[[Path], None], unmake: Callable[[Path], None], start: Start, run: Path, root: Path
) -> None:
    file = rapl(root) / "energy_uj"
    start()
    until(lambda: RunReader(run).sensor("rapl").height > 3)
    file.unlink()
    make(file)
    until(lambda: events(run, "sensor-lost"))
    before = RunReader(run).sensor("temperature").height
    until(lambda: RunReader(run).sensor("temperature").height > before + 3)
    unmake(file)
    file.write_text("3000000\n")
    until(lambda: RunReader(run).samples("energy")["value"][-1] == 3.0)
    assert set(RunReader(run).samples("energy")["value"].drop_nulls().unique()) == {1.0, 3.0}


def test_a_tree_with_pipes_in_it_does_not_hold_up_the_start(start: Start, run: Path, root: Path) -> None:
    for path in (rapl(root) / "name", root / "proc/meminfo", root / "proc/device-tree/compatible"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    start()
    assert not any(
        "no answer" in entry["detail"] for entry in json.loads((run / "channels.json").read_text())["missing"]
    )
    until(lambda: last_temperature(run) == 42.5)


@pytest.mark.parametrize(("dither", "stated", "periods"), [(True, 0.5, (0.618, 1.618)), (False, 0.0, (1.0,))])
def test_channels_json_states_the_dither_and_the_rows_follow_it(
    dither: bool, stated: float, periods: tuple[float, ...], start: Start, run: Path, root: Path
) -> None:
    def six_on_time() -> bool:
        """One after the other: a busy machine makes many a reading late, and never six of them by the same places."""
        between = RunReader(run).sensor("rapl")["t0_ns"].diff().drop_nulls() / (5 * MS)
        on_time = [any(abs(gap - wanted) < 0.18 for wanted in periods) for gap in between]
        return any(all(on_time[first : first + 6]) for first in range(len(on_time) - 5))

    start(metering=Metering(dither=dither))
    assert json.loads((run / "channels.json").read_text())["dither"] == stated
    rapl(root)
    until(six_on_time)


def test_a_kept_profile_fills_channels_json_without_being_measured_again(
    start: Start, run: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STEPSCOPE_CHARACTERISE", "1")
    rapl(root)
    found = load_sensors()["rapl"].discover(root, Target(1))
    assert isinstance(found, OpenSensor)
    found.close()
    (channel,) = found.channels
    profile = SensorProfile(30_000, 70_000, 250_000, channel.refresh_ns, 0.015, None, None)
    assert save_profiles(device_identity(root, {"rapl": found}), {channel.id: profile})
    start()
    (kept,) = (c for c in RunReader(run).channels if c["sensor"] == "rapl")
    assert kept["read_cost_p99_ns"] == 70_000
    assert kept["refresh_ns"] == channel.refresh_ns
    assert "read_cost_ns" in kept["measured"]
    assert events(run, "not-characterised") == []


@pytest.mark.slow
def test_a_new_device_is_characterised_before_it_is_ready(
    start: Start, run: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STEPSCOPE_CHARACTERISE", "1")
    rapl(root)
    start(timeout_s=HANG_S)
    (channel,) = (c for c in RunReader(run).channels if c["sensor"] == "rapl")
    assert channel["read_cost_p99_ns"] > 0
    assert list((tmp_path / "cache/stepscope/sensors").iterdir())
