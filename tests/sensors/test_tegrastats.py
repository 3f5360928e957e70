"""tegrastats: its lines through every release, and the child process that prints them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import HANG_S, until
from tests.sensors.jetson_trees import orin_nano

from stepscope.record.sensors import tegrastats
from stepscope.record.sensors.contract import NoSensor, OpenSensor, Target
from stepscope.record.sensors.tegrastats import Core, Engine, Memory, Rail, TegrastatsLine, Zone, parse

MEBI = 1024**2
FOLDER = Path(__file__).parent / "lines"
LINES = [
    line
    for path in sorted(FOLDER.glob("tegrastats-*.txt"))
    for line in path.read_text().splitlines()
    if line.strip() and line[0] != "#"
]
ORIN = next(line for line in LINES if "VDD_CPU_GPU_CV 4667mW" in line)
ME = Target(os.getpid())


def printed(content: TegrastatsLine) -> list[tuple[str, ...]]:
    """What was parsed, as it may have been printed: for each part the forms that releases have for it."""
    parts: list[tuple[str, ...]] = []
    if content.stamp is not None:
        parts.append((content.stamp.strftime("%m-%d-%Y %H:%M:%S"),))
    parts += [(pool_printed(pool),) for pool in content.memory]
    loads = [None if core.utilisation is None else f"{round(core.utilisation * 100)}%" for core in content.cpus]
    clocks = [f"{(core.frequency_hz or 0) / 1e6:.0f}" for core in content.cpus]
    each = ",".join(f"{load}@{clock}" if load else "off" for load, clock in zip(loads, clocks, strict=True))
    parts.append((f"CPU [{each}]", f"cpu [{','.join(load or 'off' for load in loads)}]@{clocks[0] if clocks else 0}"))
    of_group = [f"{name} {load}" for name, load in map(engine_printed, content.engines) if name.startswith("MTS ")]
    parts += [(f"{name} {load}",) for name, load in map(engine_printed, content.engines) if name[:4] != "MTS "]
    parts += [("MTS " + " ".join(part.removeprefix("MTS ") for part in of_group),)] if of_group else []
    for zone in content.temperatures:
        parts.append((f"{zone.name}@" + "/".join("-256C" if t is None else f"{t:g}C" for t in zone.celsius),))
    for rail in content.rails:
        numbers = [f"{watts * 1000:.0f}" for watts in rail.watts]
        parts.append((f"{rail.name} {'/'.join(numbers)}", f"{rail.name} {'mW/'.join(numbers)}mW"))
    return parts


def pool_printed(pool: Memory) -> str:
    """`RAM 2344/7852MB (lfb 1154x4MB)`, or `IRAM 0/252kB(lfb 252kB)`."""
    unit, blank = ("kB", "") if pool.name == "IRAM" else ("MB", " ")
    scale = {"kB": 1024, "MB": MEBI}
    text = f"{pool.name} {pool.used_bytes // scale[unit]}/{pool.total_bytes // scale[unit]}{unit}"
    if pool.block_bytes is not None:
        block_unit = "kB" if pool.block_bytes % MEBI else "MB"
        count = "" if pool.free_blocks is None else f"{pool.free_blocks}x"
        text += f"{blank}(lfb {count}{pool.block_bytes // scale[block_unit]}{block_unit})"
    return text if pool.cached_bytes is None else f"{text} (cached {pool.cached_bytes // MEBI}MB)"


def engine_printed(engine: Engine) -> tuple[str, str]:
    """The name, and `off`, `150`, `53%`, `53%@140` or `0%@[305,305]`."""
    clocks = ",".join(f"{hertz / 1e6:.0f}" for hertz in engine.frequencies_hz)
    listed = f"[{clocks}]" if len(engine.frequencies_hz) > 1 else clocks
    share = "" if engine.utilisation is None else f"{round(engine.utilisation * 100)}%"
    text = f"{share}@{listed}" if clocks and (share or listed != clocks) else share + clocks
    return engine.name, "off" if engine.off else text


@pytest.mark.parametrize("line", LINES)
def test_every_line_of_a_real_board_is_parsed_whole_and_no_token_is_lost(line: str) -> None:
    content = parse(line)
    assert content.unknown == ()
    rest = f" {' '.join(line.split())} ".replace("@[621]", "@621")
    for forms in printed(content):
        present = [form for form in forms if f" {form} " in rest]
        assert present or forms[0] == "CPU []", f"{forms} is not in the line"
        rest = rest.replace(f" {present[0]} ", " ", 1) if present else rest
    assert rest == " "


def test_a_line_of_jetpack_7_has_a_stamp_three_powers_a_rail_and_two_temperatures_a_zone() -> None:
    content = parse(next(line for line in LINES if "07-25-2026" in line))
    assert content.stamp == datetime(2026, 7, 25, 9, 8, 28)
    assert content.memory == (Memory("RAM", 20642 * MEBI, 62817 * MEBI, 1, 2 * MEBI),)
    assert content.rails[0] == Rail("VDD_GPU_SOC", (5.139, 5.139, 5.139))
    assert content.temperatures[0] == Zone("cpu", (52.968, 52.968))
    assert Engine("GR3D_FREQ", 0.12, (1.3e9, 1.3e9)) in content.engines
    assert Engine("NVDEC0", None, (), off=True) in content.engines
    assert Engine("APE", None, (174e6,)) in content.engines


def test_rail_and_zone_of_the_same_name_stay_apart_and_a_zone_that_is_off_has_no_temperature() -> None:
    xavier = parse("RAM 1/2MB GPU@30.5C CPU@33.5C GPU 463/463 CPU 216/220 CPU [1%@1190,off]")
    assert xavier.temperatures == (Zone("GPU", (30.5,)), Zone("CPU", (33.5,)))
    assert xavier.rails == (Rail("GPU", (0.463, 0.463)), Rail("CPU", (0.216, 0.22)))
    assert xavier.cpus == (Core(0.01, 1190e6), Core(None, None))
    assert parse("RAM 1/2MB GPU@-256C").temperatures == (Zone("GPU", (None,)),)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("GR3D_FREQ 53%@140", Engine("GR3D_FREQ", 0.53, (140e6,))),
        ("GR3D_FREQ 0%", Engine("GR3D_FREQ", 0.0, ())),
        ("GR3D_FREQ 63%@[621]", Engine("GR3D_FREQ", 0.63, (621e6,))),
        ("GR3D_FREQ @[1000,1000,1000]", Engine("GR3D_FREQ", None, (1e9, 1e9, 1e9))),
        ("NVDLA0_FREQ @1280", Engine("NVDLA0_FREQ", None, (1280e6,))),
        ("EMC 1%@408", Engine("EMC", 0.01, (408e6,))),
        ("MTS fg 1% bg 2%", Engine("MTS fg", 0.01, ())),
        ("PVA0_FREQ off", Engine("PVA0_FREQ", None, (), off=True)),
    ],
)
def test_an_engine_is_known_by_the_class_of_its_value(text: str, engine: Engine) -> None:
    assert parse(f"RAM 1/2MB {text} PLL@1C").engines[0] == engine
    assert parse(f"RAM 1/2MB {text} PLL@1C").unknown == ()


@pytest.mark.parametrize("text", ["VDD_IN 4500", "VDD_IN 4500mW", "VDD_IN 4500/1", "VDD_IN 4500mW/1mW/2mW"])
def test_a_rail_has_one_two_or_three_values_with_or_without_a_unit(text: str) -> None:
    assert parse(text).rails[0].watts[0] == 4.5


def test_what_a_log_puts_before_a_line_is_kept_and_is_no_engine() -> None:
    line = parse("Mon Feb 22 21:33:43 2021 RAM 2344/7852MB (lfb 1154x4MB) CPU [1%@345] VDD_IN 3056/3056")
    assert line.unknown == ("Mon", "Feb", "22", "21:33:43", "2021")
    assert (line.engines, line.rails) == ((), (Rail("VDD_IN", (3.056, 3.056)),))


def test_the_current_limit_of_older_boards_is_known_by_its_two_words() -> None:
    line = parse("RAM 277/3854MB (lfb 700x4MB) cpu [0%,1%]@1912 AVP 5%@115 VDE 0 GR3D 0%@76 EDP limit 1912")
    assert line.engines[-1] == Engine("EDP limit", None, (1.912e9,))
    assert line.unknown == ()
    assert parse("RAM 1/2MB EDP limit high").unknown == ("EDP", "limit", "high")


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("RAM 1/2MB NEW thing APE 150", ("NEW", "thing")),
        ("RAM 1/2MB NVMAP 1124 MB APE 150", ("NVMAP", "1124", "MB")),
        ("RAM 1/2MB APE 150 tail", ("tail",)),
        ("RAM lots APE 150", ("RAM", "lots")),
        ("RAM 1/2MB MTS fg 1% APE 150", ("MTS",)),
        ("RAM 1/2MB CPU [what,1%] APE 150", ("CPU", "[what,1%]")),
        ("13-45-2026 09:08:28 RAM 1/2MB APE 150", ("13-45-2026", "09:08:28")),
        ("RAM 1/2MB VDD_IN 12345678901234/5 APE 150", ("VDD_IN", "12345678901234/5")),
    ],
)
def test_what_is_not_known_is_kept_and_the_rest_is_read(text: str, unknown: tuple[str, ...]) -> None:
    content = parse(text)
    assert content.unknown == unknown
    assert Engine("APE", None, (150e6,)) in content.engines


TOKENS = sorted({word for line in LINES for word in line.split()})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(TOKENS), st.text(max_size=12)), max_size=40).map(" ".join))
def test_no_line_crashes_the_parser_or_makes_it_invent_a_number(line: str) -> None:
    content = parse(line)
    for rail in content.rails:
        assert all(f"{abs(watts) * 1000:.6f}".rstrip("0").rstrip(".") in line for watts in rail.watts)
    for zone in content.temperatures:
        assert zone.name in line
    for engine in content.engines:
        assert engine.name.removeprefix("MTS ") in line
        assert all(f"{hertz / 1e6:.0f}" in line for hertz in engine.frequencies_hz)
    assert all(word in line.split() for word in content.unknown)


SCRIPT = """#!/bin/sh
i=0
while :; do
  i=$((i + 1))
  {before}
  echo "{line}"
  sleep 0.02
done
"""


def program(root: Path, line: str, before: str = ":") -> Path:
    """A tegrastats below root that prints this line again and again; $i is its number."""
    path = root / "usr/bin/tegrastats"
    path.parent.mkdir(parents=True)
    path.write_text(SCRIPT.format(line=line, before=before))
    path.chmod(0o755)
    return path


@pytest.fixture
def opened() -> Iterator[list[OpenSensor]]:
    """Sensors that are closed after the test."""
    sensors: list[OpenSensor] = []
    yield sensors
    for sensor in sensors:
        sensor.close()


def ended(process: int) -> bool:
    """Whether there is no such process any more, be it that nobody has taken its status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def read_until(sensor: OpenSensor, enough: Callable[[list[float]], bool]) -> list[list[float]]:
    """Rows until one is enough; fails where none ever is."""
    rows: list[list[float]] = []

    def read() -> bool:
        rows.append(list(sensor.read()))
        return enough(rows[-1])

    until(read)
    return rows


def discover(root: Path, opened: list[OpenSensor]) -> OpenSensor:
    answer = tegrastats.discover(root, ME)
    assert isinstance(answer, OpenSensor), answer
    opened.append(answer)
    return answer


def test_the_rails_of_a_line_become_channels_and_unconnected_ones_do_not(
    tmp_path: Path, opened: list[OpenSensor]
) -> None:
    program(tmp_path, "RAM 1/2MB GPU@30.5C GPU 463/463 NC 0mW/0mW VDD_MUX 10/10 VDD_MUX $i/20 NC 0mW/0mW")
    sensor = discover(tmp_path, opened)
    assert [channel.id for channel in sensor.channels] == [
        "rail.GPU.power",
        "rail.VDD_MUX.power",
        "rail.VDD_MUX#2.power",
    ]
    assert [channel.rail for channel in sensor.channels] == ["GPU", "VDD_MUX", "VDD_MUX"]
    assert sensor.blocking
    rows = read_until(sensor, lambda row: not math.isnan(row[0]))
    assert rows[-1][:2] == [0.463, 0.01]


def test_a_line_is_a_reading_once_and_then_nothing_is(tmp_path: Path, opened: list[OpenSensor]) -> None:
    program(tmp_path, "RAM 1/2MB VDD_IN $i/1", before="[ $i -le 3 ] || sleep 100")
    sensor = discover(tmp_path, opened)
    rows = read_until(sensor, lambda row: row[0] == 0.003)
    assert all(math.isnan(sensor.read()[0]) for _ in range(3))
    measured = [row[0] for row in rows if not math.isnan(row[0])]
    assert measured == sorted(set(measured))


def test_of_several_new_lines_the_newest_counts(tmp_path: Path, opened: list[OpenSensor]) -> None:
    go, printed_all = tmp_path / "go", tmp_path / "printed"
    hold = f"[ $i -ne 2 ] || while [ ! -e {go} ]; do sleep 0.01; done"
    program(tmp_path, "RAM 1/2MB VDD_IN $i/1", before=f"{hold}; [ $i -ne 4 ] || {{ touch {printed_all}; sleep 100; }}")
    sensor = discover(tmp_path, opened)
    go.touch()
    until(printed_all.exists)
    assert sensor.read()[0] == 0.003


def test_negative_and_missing_rails_are_not_read(tmp_path: Path, opened: list[OpenSensor]) -> None:
    program(
        tmp_path, "RAM 1/2MB VDD_IN 5000/1 $rail", before='[ $i -eq 1 ] && rail="VDD_SOC 3/3" || rail="VDD_GPU -4/1"'
    )
    sensor = discover(tmp_path, opened)
    rows = read_until(sensor, lambda row: row[0] == 5.0)
    assert math.isnan(rows[-1][1])
    content = parse("VDD_IN -5/1")
    assert math.isnan(tegrastats.rail_watts(content, {"VDD_IN": ("VDD_IN", 0)})[0])


def test_a_child_that_has_ended_is_a_lost_sensor(tmp_path: Path, opened: list[OpenSensor]) -> None:
    program(tmp_path, "RAM 1/2MB VDD_IN 5000/1", before="[ $i -le 2 ] || exit 3")
    sensor = discover(tmp_path, opened)

    def lost() -> bool:
        try:
            sensor.read()
        except OSError as error:
            return "ended" in str(error)
        return False

    until(lost)


def test_rails_that_can_be_read_directly_are_not_reported_twice(tmp_path: Path) -> None:
    program(orin_nano(tmp_path), ORIN)
    answer = tegrastats.discover(tmp_path, ME)
    assert isinstance(answer, NoSensor)
    assert answer.reason == "absent"
    assert "not needed" in answer.detail


@pytest.mark.parametrize(
    ("line", "reason", "said"),
    [
        ("RAM 1/2MB GR3D_FREQ 0%", "denied", "prints no power rail"),
        ("RAM 1/2MB GR3D_FREQ 0%", "unsupported", "this board has no INA3221"),
        ("cannot open /sys", "failed", "no line of numbers"),
    ],
)
def test_a_program_that_prints_no_rail_says_why_and_leaves_no_child(
    line: str, reason: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "failed":
        monkeypatch.setattr(tegrastats, "FIRST_LINE_S", 0.2)
    if reason == "denied":
        (tmp_path / "sys/bus/i2c/drivers/ina3221x/6-0040").mkdir(parents=True)
    program(tmp_path, line)
    before = len(list(Path("/proc/self/fd").iterdir()))
    answer = tegrastats.discover(tmp_path, ME)
    assert isinstance(answer, NoSensor)
    assert answer.reason == reason
    assert said in answer.detail
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("mode", "text"), [(0o644, "#!/bin/sh\n"), (0o755, "no program"), (0o755, "#!/bin/sh\nexit 1\n")]
)
def test_a_program_that_cannot_run_is_missing(mode: int, text: str, tmp_path: Path) -> None:
    path = program(tmp_path, "")
    path.write_text(text)
    path.chmod(mode)
    answer = tegrastats.discover(tmp_path, ME)
    assert isinstance(answer, NoSensor)
    assert answer.reason == ("denied" if mode == 0o644 else "failed")


def test_it_steps_back_when_the_rails_are_opened_in_mid_run(tmp_path: Path, opened: list[OpenSensor]) -> None:
    program(tmp_path, "RAM 1/2MB VDD_IN 5000/1")
    sensor = discover(tmp_path, opened)
    orin_nano(tmp_path)
    for _ in range(tegrastats.LOOK_EVERY - 1):
        sensor.read()
    with pytest.raises(OSError, match="not needed any more"):
        sensor.read()


def test_the_child_ends_with_close_and_with_the_sampler(tmp_path: Path) -> None:
    program(tmp_path, "RAM $$/999999MB VDD_IN $$/1")
    code = (
        "import os, sys; from pathlib import Path\n"
        "from stepscope.record.sensors import tegrastats\n"
        "from stepscope.record.sensors.contract import Target\n"
        f"tegrastats.FIRST_LINE_S = {HANG_S}\n"
        f"found = tegrastats.discover(Path({str(tmp_path)!r}), Target(1))\n"
        "value = float('nan')\n"
        "while value != value: value = found.read()[0]\n"
        "print(round(value * 1000), flush=True)\n"
        "found.close() if sys.argv[1] == 'close' else os.kill(os.getpid(), 9)\n"
    )
    for ending in ("close", "killed"):
        done = subprocess.run(
            [sys.executable, "-c", code, ending], capture_output=True, text=True, timeout=HANG_S, check=False
        )
        child = int(done.stdout)
        until(partial(ended, child))
