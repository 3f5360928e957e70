"""The live view: reads only what is new, shows what is known, says when the run ends, and never disturbs it."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console
from tests.fabricate import fabricate_run
from tests.patience import HANG_S, until

from stepscope.cli import live as live_command
from stepscope.clock import read_clocks
from stepscope.errors import RunNotFound
from stepscope.report.live import growing_files, live_view
from stepscope.report.live.growing_files import STEP_ROW, Channel, LineTail, RowTail, planned_steps, status_from_header
from stepscope.report.live.run_state import Now, RunWatcher, total_scopes
from stepscope.report.live.screen import Screen, ending_of, status_line, watch
from stepscope.runfolder import RunWriter, schema

MS = 1_000_000
JETSON = {"compatible": "nvidia,p2771-0000 nvidia,tegra186"}
ROW = struct.Struct("<qd")


def _channel(sensor: str, quantity: str, unit: str, scope: str, kind: str = "gauge", **more: Any) -> dict[str, Any]:
    return {
        "sensor": sensor,
        "id": f"{scope}.{quantity}",
        "quantity": quantity,
        "unit": unit,
        "scope": scope,
        "kind": kind,
        **more,
    }


class Growing:
    """A run that a test lets go on: every call appends so many steps of 10 ms, and readings of the same time."""

    CHANNELS = (
        _channel("cpu", "core_idle_time", "ns", "core:0", "counter"),
        _channel("cpu", "core_idle_time", "ns", "core:1", "counter"),
        _channel("ina", "power", "W", "rail:VDD_IN", rail="VDD_IN"),
        _channel("ina", "power", "W", "rail:VDD_SYS_GPU", rail="VDD_SYS_GPU"),
        _channel("mem", "rss", "B", "process"),
        _channel("mem", "memory_available", "B", "system"),
        _channel("gpu", "utilisation", "1", "gpu:0"),
        _channel("gpu", "memory_used", "B", "gpu:0"),
        _channel("gpu", "memory_total", "B", "gpu:0"),
        _channel("heat", "temperature", "degC", "zone:CPU-therm"),
        _channel("heat", "lateness", "ns", "sampler"),
        _channel("limits", "core_frequency", "Hz", "core:0"),
        _channel("limits", "core_frequency", "Hz", "core:1"),
        _channel("limits", "frequency", "Hz", "gpu:0"),
        _channel("limits", "cooling_state", "1", "cooling:cpufreq-0"),
        _channel("limits", "fan_level", "1", "cooling:pwm-fan"),
        _channel("queue", "run_delay", "ns", "thread", "counter"),
    )

    begun: ClassVar[list[RunWriter]] = []

    def __init__(self, out: Path, **header: Any) -> None:
        self.writer = RunWriter.create(out, "lenet")
        self.begun.append(self.writer)
        self.path = self.writer.path
        self.writer.write_device({**JETSON, "memory_bytes": 8_000_000_000, "power_mode": "MAXN"})
        self.describe(self.CHANNELS)
        workload = {"name": "lenet", "batch_size": 16}
        defaults = {"workload": workload, "argv": ["stepscope", "run", "lenet", "--steps", "200"], "pid": os.getpid()}
        self.writer.update(**{**defaults, "clock": read_clocks(), **header})
        self.now_ns, self.step = 10**12, 0

    def describe(self, channels: Any) -> None:
        (self.path / "channels.json").write_text(json.dumps({"channels": list(channels), "missing": []}))

    def go(self, steps: int, watts: float = 5.0) -> None:
        for _ in range(steps):
            t0_ns, self.now_ns = self.now_ns, self.now_ns + 10 * MS
            self.writer.append_step(self.step, t0_ns, self.now_ns, 16, 0.5, False)
            self.step += 1
            idle = self.now_ns - 10**12
            self.row("cpu", idle, idle / 4)
            self.row("ina", watts, math.nan)
            self.row("mem", 4e8, 5e9)
            self.row("gpu", 0.8, 1e9, 4e9)
            self.row("heat", 85.0, 1.0)
            self.row("limits", 1.2e9, 2.0e9, 1.3e9, 2.0, 0.4)
            self.row("queue", idle / 5)
        self.writer.flush_steps()

    def row(self, sensor: str, *values: float) -> None:
        with (self.path / "samples" / f"{sensor}.rows").open("ab") as file:
            file.write(struct.pack(f"<qq{len(values)}d", self.now_ns, self.now_ns, *values))

    def clock(self) -> int:
        return self.now_ns


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    """Close what a test has left going on."""
    yield
    while Growing.begun:
        Growing.begun.pop().close("ok")


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "runs")


def _shown(now: Now, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, legacy_windows=False)
    console.print(Screen(now))
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    return written


def test_the_row_of_a_step_is_that_of_the_run_folder() -> None:
    assert STEP_ROW.size == schema.STEP_ROW.itemsize
    assert STEP_ROW.pack(1, 2, 3, 4, 0.5, 1) == schema.PACK_STEP(1, 2, 3, 4, 0.5, True)


def test_a_tail_gives_each_whole_row_once_and_waits_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    tail = RowTail(path, ROW)
    assert list(tail.read_new_rows()) == []
    path.write_bytes(ROW.pack(1, 0.1) + ROW.pack(2, 0.2)[:7])
    assert list(tail.read_new_rows()) == [(1, 0.1)]
    with path.open("ab") as file:
        file.write(ROW.pack(2, 0.2)[7:])
    assert list(tail.read_new_rows()) == [(2, 0.2)]
    assert list(tail.read_new_rows()) == []
    assert tail.first() == (1, 0.1)
    tail.close()


def test_a_tail_reads_the_end_alone_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"".join(ROW.pack(n, 0.0) for n in range(20_000)))
    tail = RowTail(path, ROW)
    rows = list(tail.read_new_rows())
    assert len(rows) < 5_000
    assert rows[-1] == (19_999, 0.0)
    tail.close()


def test_a_tail_reads_on_when_the_file_has_lost_its_name(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(ROW.pack(1, 0.0))
    tail = RowTail(path, ROW)
    list(tail.read_new_rows())
    with path.open("ab") as file:
        file.write(ROW.pack(2, 0.0))
    path.unlink()
    assert list(tail.read_new_rows()) == [(2, 0.0)]
    tail.close()


def test_lines_are_given_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = LineTail(path)
    assert tail.read_new_lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.read_new_lines() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n\xff\n")
    assert tail.read_new_lines() == ["two", "\ufffd"]


def test_a_look_knows_speed_power_load_memory_and_heat(growing: Growing) -> None:
    view = RunWatcher(growing.path, growing.clock)
    growing.go(100)
    view.read_state()
    growing.go(50)
    now = view.read_state()
    view.close()
    assert (now.pace.done, now.planned, now.status) == (150, 200, "running")
    assert now.pace.step_ns == 10 * MS
    assert now.pace.samples_per_s == pytest.approx(1600)
    assert now.left_s == pytest.approx(0.5)
    assert dict(now.cores) == pytest.approx({"core 0": 0.0, "core 1": 0.75})
    assert dict(now.accelerators) == pytest.approx({"gpu 0": 0.8})
    rails = dict(now.rails)
    assert rails.pop("VDD_SYS_GPU") is None
    assert rails == pytest.approx({"VDD_IN": 5.0})
    assert now.total_w == pytest.approx(5.0)
    assert now.left_j == pytest.approx(2.5)
    assert (now.resident_bytes, now.available_bytes, now.memory_bytes) == (4e8, 5e9, 8_000_000_000)
    assert now.accelerator_memory == (("gpu 0", 1e9, 4e9),)
    assert now.temperatures == (("CPU-therm", 85.0),)
    assert dict(now.clocks) == {"core 0": 1.2e9, "core 1": 2.0e9, "gpu 0": 1.3e9}
    assert (now.power_mode, now.throttled) == ("MAXN", ("cooling cpufreq-0",))
    assert now.delayed == pytest.approx(0.2)


def test_what_was_not_read_lately_is_not_known(growing: Growing) -> None:
    view = RunWatcher(growing.path, growing.clock)
    growing.go(10)
    view.read_state()
    growing.now_ns += 60_000 * MS
    growing.row("mem", 4e8, 5e9)
    now = view.read_state()
    view.close()
    assert now.total_w is None
    assert now.resident_bytes == 4e8
    assert "total" not in _shown(now)


def test_after_the_last_reading_of_a_run_that_goes_on_nothing_is_known(growing: Growing) -> None:
    view = RunWatcher(growing.path, growing.clock)
    growing.go(10)
    assert view.read_state().total_w == pytest.approx(5.0)
    growing.now_ns += 60_000 * MS
    now = view.read_state()
    view.close()
    assert now.status == "running"
    assert (now.total_w, now.resident_bytes, now.temperatures) == (None, None, (("CPU-therm", None),))


def test_a_core_whose_idle_time_stands_still_is_as_busy_as_before_until_it_would_have_woken(growing: Growing) -> None:
    view = RunWatcher(growing.path, growing.clock)
    growing.row("cpu", 0.0, 0.0)
    assert dict(view.read_state().cores) == {"core 0": None, "core 1": None}
    found = []
    for after_ms in (500, 1000, 2500, 4000, 7000):
        growing.now_ns = 10**12 + after_ms * MS
        asleep = min(after_ms, 1000) * 0.9 * MS
        growing.row("cpu", asleep, after_ms * MS)
        found.append(dict(view.read_state().cores))
    view.close()
    assert [cores["core 0"] for cores in found] == pytest.approx([0.1, 0.1, 0.1, 0.1, 1.0])
    assert [cores["core 1"] for cores in found] == pytest.approx([0.0] * 5)


def test_what_lies_inside_a_rail_of_the_total_is_not_added_to_it(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.writer.write_device({"cpu": "Intel Core", "accelerators": [{"vendor": "amd"}]})
    growing.describe(
        [
            _channel("p", "power", "W", "rapl:package-0", rail="package-0", parent_scope="system"),
            _channel("p", "power", "W", "gpu:0300", rail="gpu:0300", parent_scope="system"),
            _channel("p", "power", "W", "gpu:0300/pkg", rail="gpu:0300/pkg", parent_scope="gpu:0300"),
        ]
    )
    growing.row("p", 20.0, 100.0, 80.0)
    view = RunWatcher(growing.path, growing.clock)
    assert view.read_state().total_w == pytest.approx(120.0)
    view.close()


def _with_two_cards(growing: Growing, own: float, other: float) -> Now:
    growing.writer.write_device({"cpu": "Intel Core", "accelerators": [{"vendor": "nvidia"}]})
    growing.describe(
        [
            _channel("p", "power", "W", "rapl:package-0", rail="package-0", parent_scope="system"),
            *(
                _channel("p", quantity, unit, f"gpu:{card}", rail=f"gpu:{card}", parent_scope="system")
                for card in (0, 1)
                for quantity, unit in (("power", "W"), ("utilisation", "1"), ("temperature", "degC"),
                                       ("memory_used", "B"), ("process_memory", "B"))
            ),
        ]
    )  # fmt: skip
    growing.row("p", 20.0, 100.0, 0.9, 60.0, 2e9, own, 250.0, 1.0, 88.0, 70e9, other)
    view = RunWatcher(growing.path, growing.clock)
    now = view.read_state()
    view.close()
    return now


def test_a_card_that_the_training_has_no_memory_of_is_not_shown_as_its_own(growing: Growing) -> None:
    now = _with_two_cards(growing, 1e9, math.nan)
    assert (now.accelerators, now.temperatures) == ((("gpu 0", 0.9),), (("gpu 0", 60.0),))
    assert now.accelerator_memory == (("gpu 0", 2e9, None),)
    assert now.total_w == pytest.approx(120.0)
    assert "not shown, since the training has no memory of it: gpu 1" in _shown(now)
    assert "88 °C" not in status_line(now)


def test_cards_that_both_train_are_shown_both(growing: Growing) -> None:
    now = _with_two_cards(growing, 1e9, 1e9)
    assert (len(now.accelerators), now.other_cards) == (2, None)
    assert now.total_w == pytest.approx(370.0)


def test_a_view_says_where_it_cannot_tell_which_card_trains(growing: Growing) -> None:
    now = _with_two_cards(growing, math.nan, math.nan)
    assert len(now.accelerators) == 2
    assert "2 GPUs are read: which ones train is not known" in _shown(now)


def test_a_counter_that_is_set_back_gives_no_rate_and_no_negative_one() -> None:
    channel = Channel(_channel("rapl", "energy", "J", "rapl:psys", "counter"))
    channel.add_readings([(0, 0.0), (10**9, 5.0)])
    assert channel.value(10**9) == pytest.approx(5.0)
    channel.add_readings([(2 * 10**9, 1.0)])
    assert channel.value(2 * 10**9) is None
    channel.add_readings([(3 * 10**9, 2.0), (4 * 10**9, 5.0)])
    assert channel.value(4 * 10**9) == pytest.approx(3.0)


def test_a_sensor_that_joins_is_followed_from_then_on(growing: Growing) -> None:
    view = RunWatcher(growing.path, growing.clock)
    growing.go(5)
    view.read_state()
    growing.describe([*Growing.CHANNELS, _channel("wall", "power", "W", "wall:shelly", rail="shelly")])
    growing.row("wall", 9.0)
    now = view.read_state()
    view.close()
    assert ("shelly", 9.0) in now.rails


def test_energy_counters_stand_in_where_no_power_is_read(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.describe([_channel("rapl", "energy", "J", "rapl:package-0", "counter", rail="package-0")])
    growing.row("rapl", 100.0)
    growing.now_ns += 1000 * MS
    growing.row("rapl", 115.0)
    view = RunWatcher(growing.path, growing.clock)
    assert dict(view.read_state().rails) == pytest.approx({"package-0": 15.0})
    view.close()


def test_a_total_is_of_the_rail_that_holds_the_others_or_not_known() -> None:
    rails = [("VDD_IN", "rail:VDD_IN"), ("VDD_SYS_GPU", "rail:VDD_SYS_GPU")]
    assert total_scopes(rails, JETSON, None) == ("rail:VDD_IN",)
    assert total_scopes([("odd", "rail:odd"), ("even", "rail:even")], {}, None) == ()
    assert total_scopes([("odd", "rail:odd"), ("plug", "wall:plug")], {}, None) == ("wall:plug",)


def test_a_run_that_has_only_begun_can_be_watched(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, "early")
    view = RunWatcher(writer.path)
    now = view.read_state()
    view.close()
    assert now.status == "running"
    assert "no step has ended yet" in _shown(now)
    assert status_line(now).startswith(now.name)


@pytest.mark.parametrize("broken", ["run.json", "channels.json", "device.json"])
def test_a_file_that_is_cut_off_leaves_what_was_known(growing: Growing, broken: str) -> None:
    view = RunWatcher(growing.path, growing.clock)
    growing.go(3)
    before = view.read_state()
    (growing.path / broken).write_text('{"cut')
    growing.go(3)
    now = view.read_state()
    view.close()
    assert now.pace.done == 6
    assert (now.name, now.planned, now.rails) == (before.name, before.planned, before.rails)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("cores", [0, 4, 16, 100])
def test_no_line_is_wider_than_the_terminal(growing: Growing, width: int, cores: int) -> None:
    growing.describe(
        [*Growing.CHANNELS[2:], *(_channel("c", "core_busy_time", "ns", f"core:{n}", "counter") for n in range(cores))]
    )
    growing.writer.append_event("odd", "a warning " * 30 + "\x1b[31m\u202e 模型模型")
    growing.writer.update(reason=None, simulated="jetson-tx2")
    growing.go(30)
    if cores:
        growing.row("c", *([1.0] * cores))
    view = RunWatcher(growing.path, growing.clock)
    now = view.read_state()
    view.close()
    shown = _shown(now, width)
    console = Console(width=1000)
    assert max(console.measure(line).maximum for line in shown.splitlines()) <= width
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_the_screen_says_what_it_shows(growing: Growing) -> None:
    growing.writer.append_event("sensor-lost", "sensor x is lost")
    growing.go(150)
    view = RunWatcher(growing.path, growing.clock)
    shown = _shown(view.read_state())
    view.close()
    for said in (
        "running",
        "150/200",
        "75 %",
        "left 500 ms",
        "10 ms a step",
        "total 5 W",
        "VDD_SYS_GPU -",
        "of 8 GB",
        "gpu 0 1 GB of 4 GB",
        "fastest core 2 GHz, slowest 1.2 GHz",
        "gpu 0 1.3 GHz",
        "power mode MAXN",
        "throttled: cooling cpufreq-0",
        "waits for a core 20 % of the time",
        "fan cooling pwm-fan 40.0 %",
    ):
        assert said in shown, said
    assert "85 °C" in shown
    assert "sensor x is lost" in shown


def test_a_step_that_takes_long_is_said_to(growing: Growing) -> None:
    growing.go(20)
    growing.now_ns += 30_000 * MS
    view = RunWatcher(growing.path, growing.clock)
    assert "this step: 30 s so far" in _shown(view.read_state())
    view.close()


def test_a_view_ends_with_the_run_and_sees_its_last_steps(growing: Growing) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        growing.go(10)
        if len(naps) == 3:
            growing.writer.close("oom", "out of memory")

    growing.go(10)
    assert watch(growing.path, console, sleep=nap) == "oom"
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert naps == [5.0] * 3
    assert "step 10/200" in said[0]
    assert said[-1] == f"{growing.path.name}: oom (out of memory)"


def test_on_a_terminal_the_view_draws_twice_a_second_until_the_end(growing: Growing) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        growing.go(10)
        if len(naps) == 2:
            growing.writer.close("ok")

    growing.go(10)
    assert watch(growing.path, console, sleep=nap) == "ok"
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert naps == [0.5, 0.5]
    for said in ("10/200", "20/200", "30/200"):
        assert said in shown


def test_warnings_are_said_once_in_lines(growing: Growing) -> None:
    console = Console(file=io.StringIO(), width=80)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:
            growing.writer.append_event("gap", "a gap of 3 s")
        if len(naps) == 3:
            growing.writer.close("ok")

    watch(growing.path, console, lines=True, sleep=nap)
    assert console.file.getvalue().count("! a gap of 3 s") == 1  # type: ignore[attr-defined]


def test_a_run_that_has_ended_is_said_to_have(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80)
    crashed = fabricate_run(tmp_path, steps=3, status=None)
    assert watch(crashed, console) == "interrupted"
    assert console.file.getvalue() == f"{crashed.name}: interrupted\n"  # type: ignore[attr-defined]


def test_a_run_that_has_ended_has_the_pace_of_its_last_steps(tmp_path: Path) -> None:
    ended = fabricate_run(tmp_path, steps=70)
    assert not (ended / "steps.rows").exists()
    now = RunWatcher(ended).read_state()
    assert now.pace.done == 70
    assert now.pace.mean_ns is not None
    assert now.pace.began_ns is not None
    assert now.waited_ns is None


@pytest.mark.parametrize(
    ("argv", "planned"),
    [
        (["stepscope", "run", "lenet", "--steps", "300"], 300),
        (["stepscope", "run", "lenet", "--steps=40"], 40),
        (["stepscope", "run", "train.py", "--", "--steps", "9"], None),
        (["stepscope", "run", "lenet", "--steps"], None),
        (["/opt/venv/bin/stepscope", "run", "lenet", "--steps", "8"], 8),
        (["/opt/site-packages/stepscope/__main__.py", "run", "lenet", "--steps", "8"], 8),
        (["train.py", "--steps", "300"], None),
        ([], None),
    ],
)
def test_the_planned_steps_are_read_where_they_are_said(argv: list[str], planned: int | None) -> None:
    assert planned_steps({"argv": argv}) == planned
    assert planned_steps({"argv": argv, "planned_steps": 7}) == 7


def test_a_run_whose_trainer_is_gone_is_interrupted(tmp_path: Path) -> None:
    assert status_from_header({"status": "running", "pid": 2**22 + 1}, tmp_path) == "interrupted"
    assert status_from_header({"status": "running", "pid": os.getpid()}, tmp_path) == "running"
    assert status_from_header({"status": "running"}, tmp_path) == "running", "a run that has only begun has no pid yet"


def test_waiting_finds_the_newest_run_that_goes_on(tmp_path: Path) -> None:
    runs, naps = tmp_path / "runs", list[float]()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 1:
            fabricate_run(runs, steps=2)
            (runs / "foreign").mkdir()
            (runs / "foreign" / "run.json").write_text("no json")
        else:
            Growing(runs)

    found = growing_files.wait_for(lambda: growing_files.newest_running(runs), lambda: False, nap)
    assert found is not None
    assert found.name.endswith(found.name.split("-")[-1])
    assert "lenet" in found.name
    assert len(naps) == 2


def test_waiting_ends_when_it_is_given_up(tmp_path: Path) -> None:
    assert growing_files.wait_for(lambda: growing_files.newest_running(tmp_path), lambda: True) is None


def test_the_run_of_a_process_is_the_one_it_began_since_then(tmp_path: Path) -> None:
    earlier = Growing(tmp_path)
    since = read_clocks()["monotonic_ns"]
    assert growing_files.find_run_of_process(tmp_path, os.getpid(), since) is None
    assert growing_files.find_run_of_process(tmp_path, os.getpid(), 0) == earlier.path
    assert growing_files.find_run_of_process(tmp_path, 1, 0) is None


def test_the_view_beside_a_training_shows_its_run_and_ends_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with live_view(tmp_path / "runs", lines=True):
        growing = Growing(tmp_path / "runs")
        growing.go(30)
        said = ""

        def shown() -> bool:
            nonlocal said
            said += capfd.readouterr().err
            return "step 30/200" in said

        until(shown)
        growing.writer.close("ok")
    assert f"{growing.path.name}: ok" in said + capfd.readouterr().err or "step 30/200" in said


def test_ctrl_c_reaches_the_training_and_not_its_view(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "runs")
    command = [
        sys.executable,
        "-m",
        "stepscope.report.live",
        str(tmp_path / "runs"),
        "--of",
        str(os.getpid()),
        "--lines",
    ]
    view = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert view.stderr is not None
    assert b"step 0/200" in view.stderr.readline()
    view.send_signal(signal.SIGINT)
    growing.writer.close("interrupted", "KeyboardInterrupt")
    rest = view.stderr.read()
    assert view.wait(HANG_S) == 0
    view.stderr.close()
    assert b"interrupted (KeyboardInterrupt)" in rest


def test_a_view_imports_nothing_heavy() -> None:
    heavy = {"polars", "numpy", "scipy", "torch", "altair"}
    script = f"import sys\nimport stepscope.report.live.screen\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.strip() == "set()"


def test_a_run_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound) as refused:
        live_command.live(run=tmp_path / "nowhere")
    assert "--wait" in (refused.value.hint or "")


def test_the_end_of_a_run_is_said_with_its_reason(growing: Growing) -> None:
    growing.writer.close("failed", "ValueError: x")
    view = RunWatcher(growing.path, growing.clock)
    assert ending_of(view.read_state()) == f"{growing.path.name}: failed (ValueError: x)"
    view.close()


def test_the_newest_of_runs_is_that_of_the_latest_clock_whatever_it_was_renamed_to(tmp_path: Path) -> None:
    for number, name in ((1, "zzz"), (2, "20231114T221320Z-net-000000")):
        clock = {"unix_ns": number * 1_700_000_000_000_000_000, "monotonic_ns": number}
        path = fabricate_run(tmp_path, steps=0, status=None, samples=False, header={"pid": os.getpid(), "clock": clock})
        path.rename(tmp_path / name)
    newest = growing_files.newest_running(tmp_path)
    assert newest is not None
    assert newest.name != "zzz"
