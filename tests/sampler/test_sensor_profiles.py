"""Profiles: measured under a load that leaves nothing behind, kept per device; the driver is not overruled."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from stepscope.clock import monotonic_ns
from stepscope.record.sampler import characterise
from stepscope.record.sampler.characterise import (
    LoadStepTraces,
    SensorProfile,
    Trace,
    build_profiles,
    device_identity,
    load_profiles,
    may_characterise,
    period_warning,
    poll_through_load_step,
    power_responses,
    recall_or_measure,
    save_profiles,
    with_profiles,
)
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sampler.sensor_response import load_schedule, loaders
from stepscope.record.sensors.contract import Channel, OpenSensor

MS = 1_000_000
GAUGE = Channel("rail.A.power", "m", "power", "W", "gauge", "rail:A", "/sys/x")
COUNTER = Channel("zone.energy", "m", "energy", "J", "counter", "zone", "/sys/y")
PROFILE = SensorProfile(50_000, 90_000, 250_000, 100 * MS, 0.038, "running average", 420 * MS)


def sensor(read: Callable[[], Sequence[float]], *channels: Channel) -> OpenSensor:
    return OpenSensor(channels, read, lambda: None)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STEPSCOPE_CHARACTERISE", raising=False)


def test_the_load_is_one_long_step_and_then_pulses_that_end_before_the_whole() -> None:
    load = load_schedule(1000, 4.0)
    assert load[0][1] - load[0][0] > 1_000 * MS
    assert len(load) > 15
    assert all(14 * MS <= off - on <= 76 * MS for on, off in load[1:])
    ends = [t for times in load for t in times]
    assert ends == sorted(ends)
    assert ends[-1] <= 1000 + 4_000 * MS


def test_no_process_of_the_load_is_left_even_when_the_block_fails() -> None:
    never = [(monotonic_ns() + 3_600_000 * MS, monotonic_ns() + 3_600_001 * MS)]

    def fail() -> None:
        with loaders(processes=2) as ready:
            assert len(ready) == 2
            ready.send_schedule(never)
            children.extend(set(task_children()) - before)
            raise KeyboardInterrupt

    before = set(task_children())  # another test may have left one that is about to end
    children: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(children) == 2
    assert not set(children) & set(task_children())


def task_children() -> list[str]:
    return Path("/proc/thread-self/children").read_text().split()


def test_a_counter_is_polled_through_a_real_load_and_the_cost_of_its_reads_is_measured() -> None:
    said: list[str] = []
    now_ns, reads = [monotonic_ns()], itertools.count()

    def read() -> list[float]:
        now_ns[0] += MS // 2  # time passes with the reads: however few a busy machine makes in 0.3 s
        return [0.25 * (next(reads) // 4), math.nan]

    found = {
        "m": sensor(read, COUNTER, GAUGE),
        "other": sensor(lambda: [1.0], replace(GAUGE, quantity="rss")),
    }
    seen = poll_through_load_step(found, lambda: now_ns[0], seconds=0.3, progress=said.append)
    assert set(seen.traces) == {"m"}
    assert seen.processes > 0
    measured = build_profiles(seen)
    assert set(measured) == {"zone.energy"}  # a channel that gave nothing has no profile
    profile = measured["zone.energy"]
    assert profile.step_size == 0.25
    assert profile.filter is None  # a counter adds up
    assert 0 < profile.read_cost_ns <= profile.read_cost_p99_ns
    assert "1 power sensor," in said[0]


def test_the_refresh_of_a_counter_and_its_power_come_from_the_readings() -> None:
    times = list(range(0, 300 * MS, MS // 4))
    values = [0.25 * (t // (10 * MS)) for t in times]
    seen = LoadStepTraces({"m": Trace((COUNTER,), times, [50_000] * len(times), [[value] for value in values])}, [], 0)
    assert build_profiles(seen)["zone.energy"].refresh_ns == pytest.approx(10 * MS, rel=0.01)
    [(channel, drawn)] = power_responses(seen)
    assert channel.id == "zone.energy"
    assert median(value for _, value in drawn) == pytest.approx(
        25, rel=0.05
    )  # 0.25 J every 10 ms, thinned to every third reading


def test_a_sensor_that_fails_while_it_is_characterised_costs_itself_alone() -> None:
    def broken() -> list[float]:
        raise OSError(5, "Input/output error")

    good = replace(GAUGE, id="good", scope="rail:B")
    seen = poll_through_load_step(
        {"bad": sensor(broken, GAUGE), "good": sensor(lambda: [2.0], good)}, monotonic_ns, seconds=0.05
    )
    measured = build_profiles(seen)
    assert set(measured) == {"good"}
    assert (measured["good"].refresh_ns, measured["good"].step_size, measured["good"].filter) == (None, None, None)


def test_without_a_power_sensor_nothing_is_measured_and_no_time_is_lost(tmp_path: Path) -> None:
    found = {"m": sensor(lambda: [1.0], replace(GAUGE, quantity="temperature"))}
    assert poll_through_load_step(found, monotonic_ns).traces == {}
    estimate = {"m": sensor(lambda: [1.0], replace(GAUGE, kind="estimate"))}
    events = EventLog(tmp_path / "events.jsonl")
    for kinds in (found, estimate):
        assert recall_or_measure(tmp_path, kinds, monotonic_ns, lambda _: pytest.fail("it measured"), events) == {}


def test_a_profile_is_kept_for_the_device_and_not_taken_for_another(tmp_path: Path) -> None:
    found = {"m": sensor(lambda: [1.0], GAUGE)}
    device = device_identity(tmp_path, found)
    assert load_profiles(device) is None
    assert save_profiles(device, {GAUGE.id: PROFILE})
    assert load_profiles(device) == {GAUGE.id: PROFILE}
    moved = {"m": sensor(lambda: [1.0], replace(GAUGE, source="/sys/elsewhere"))}
    assert load_profiles(device_identity(tmp_path, moved)) is None


def test_the_identity_of_a_saved_tree_does_not_depend_on_where_it_lies(tmp_path: Path) -> None:
    trees = [tmp_path / "one", tmp_path / "two"]
    identities = []
    for tree in trees:
        tree.mkdir()
        channel = replace(GAUGE, source=f"{tree}/sys/x")
        identities.append(device_identity(tree, {"m": sensor(lambda: [1.0], channel)}))
    assert identities[0] == identities[1]


def test_a_chip_that_has_another_number_after_a_boot_is_not_characterised_again(tmp_path: Path) -> None:
    paths = (f"/sys/class/hwmon/hwmon{n}/in1_input x /sys/class/hwmon/hwmon{n}/curr1_input" for n in (2, 11))
    sensors = [{"m": sensor(lambda: [1.0], replace(GAUGE, source=path))} for path in paths]
    assert device_identity(tmp_path, sensors[0]) == device_identity(tmp_path, sensors[1])


@pytest.mark.parametrize("damage", ["", "[]", '{"format": 1}', "{not json", '{"format": 2}', "fields"])
def test_a_damaged_cache_is_measured_anew_and_not_believed(damage: str, tmp_path: Path) -> None:
    device = device_identity(tmp_path, {"m": sensor(lambda: [1.0], GAUGE)})
    save_profiles(device, {GAUGE.id: PROFILE})
    (file,) = (tmp_path / "cache/stepscope/sensors").iterdir()
    content = json.loads(file.read_text())
    content["channels"][GAUGE.id]["refresh_ns"] = "soon"
    file.write_text(json.dumps(content) if damage == "fields" else damage)
    assert load_profiles(device) is None


def test_a_cache_that_cannot_be_written_is_an_event_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setattr(characterise, "SECONDS", 0.05)
    monkeypatch.setattr(
        characterise, "poll_through_load_step", lambda found, clock: poll_through_load_step(found, clock, seconds=0.05)
    )
    announced: list[float] = []
    events = EventLog(tmp_path / "events.jsonl")
    found = {"m": sensor(lambda: [1.0], GAUGE)}
    assert set(recall_or_measure(tmp_path, found, monotonic_ns, announced.append, events)) == {GAUGE.id}
    assert announced == [0.05]
    assert json.loads((tmp_path / "events.jsonl").read_text())["kind"] == "not-kept"


def test_what_the_driver_states_stands_and_what_it_leaves_open_is_filled_and_named() -> None:
    stated = replace(GAUGE, step_size=0.019, filter="running average of 64 conversions")
    found = with_profiles(sensor(lambda: [1.0], stated), {GAUGE.id: PROFILE}, 10 * MS)
    (channel,) = found.channels
    assert (channel.step_size, channel.refresh_ns) == (0.019, 100 * MS)
    assert (channel.filter, channel.window_ns) == ("running average of 64 conversions", None)
    assert channel.measured == ("refresh_ns", "read_cost_ns", "read_cost_p99_ns")
    assert (channel.read_cost_ns, channel.read_cost_p99_ns) == (50_000, 90_000)


def test_a_sensor_is_read_a_little_faster_than_it_refreshes_and_never_faster_than_asked() -> None:
    plain = sensor(lambda: [1.0], GAUGE)
    assert with_profiles(plain, {GAUGE.id: PROFILE}, 10 * MS).every_ns == 80 * MS
    assert with_profiles(plain, {GAUGE.id: PROFILE}, 90 * MS).every_ns == 90 * MS
    assert with_profiles(plain, {}, 10 * MS).every_ns == 0
    own = replace(plain, every_ns=1_000 * MS)  # reading may cost what time does not show: its author knows
    assert with_profiles(own, {GAUGE.id: PROFILE}, 10 * MS).every_ns == 500 * MS


def test_who_asks_for_a_finer_period_than_the_sensor_is_told_why_it_is_not_kept() -> None:
    found = with_profiles(sensor(lambda: [1.0], GAUGE), {GAUGE.id: PROFILE}, 10 * MS)
    said = period_warning(found, 10 * MS)
    assert said == "refreshes every 100 ms and averages over 420 ms and is read every 80 ms"
    assert period_warning(found, 500 * MS) is None
    assert period_warning(sensor(lambda: [1.0], replace(GAUGE, quantity="rss")), 1) is None


def test_a_run_characterises_this_machine_alone_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert may_characterise(Path("/"), True)
    assert not may_characterise(Path("/"), False)
    assert not may_characterise(tmp_path, True)
    monkeypatch.setenv("STEPSCOPE_CHARACTERISE", "1")
    assert may_characterise(tmp_path, True)
    monkeypatch.setenv("STEPSCOPE_CHARACTERISE", "0")
    assert not may_characterise(Path("/"), True)
