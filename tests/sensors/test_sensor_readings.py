"""What each sensor makes of frozen trees of /proc and /sys."""

from __future__ import annotations

import errno
import math
import os
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.record.access import word_after
from stepscope.record.sensors import cpu, load_sensors, number_files, processes
from stepscope.record.sensors.contract import NoSensor, OpenSensor, Target

cpu_frequency, process_memory, process_memory_map, system_memory, temperature = (
    load_sensors()[name]
    for name in ("cpu_frequency", "process_memory", "process_memory_map", "system_memory", "temperature")
)
ME = Target(4711)
STAT = """cpu  30 0 6 900 1 0 2 0 0 0
cpu0 10 1 2 400 7 3 4 9 0 0
cpu1 20 0 4 500 0 0 0 0 0 0
intr 1 2 3
"""
PROCESS_STAT = (
    "4711 (a ) b) S 1 4711 4711 0 -1 4194560 9 9 0 0 123 45 7 8 20 0 3 0 99 1000000 2048 18446744073709551615 1\n"
)


def write(root: Path, files: dict[str, str]) -> Path:
    """Write the files below root, making their folders; returns root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cpuidle(root: Path, idle_us: dict[int, list[int]]) -> Path:
    """Cores with their idle states' times, us, all online."""
    cpu = "sys/devices/system/cpu"
    files = {f"{cpu}/online": f"{min(idle_us)}-{max(idle_us)}\n"}
    for core, states in idle_us.items():
        files |= {f"{cpu}/cpu{core}/cpuidle/state{n}/time": f"{us}\n" for n, us in enumerate(states)}
    return write(root, files)


def found(answer: OpenSensor | NoSensor) -> OpenSensor:
    assert isinstance(answer, OpenSensor), answer
    return answer


def test_cpuidle_gives_idle_nanoseconds_of_each_core_in_order_of_number(tmp_path: Path) -> None:
    cpuidle(tmp_path, {0: [1, 2], 1: [10, 20], 2: [5, 5], 10: [7, 8]})
    write(tmp_path, {"sys/devices/system/cpu/online": "0-2,10\n"})
    sensor = found(cpu.discover_cores(tmp_path, ME))
    assert [channel.scope for channel in sensor.channels] == ["core:0", "core:1", "core:2", "core:10"]
    assert list(sensor.read()) == [3000.0, 30000.0, 10000.0, 15000.0]
    sensor.close()


def test_a_core_that_goes_offline_reads_nan_and_not_busy(tmp_path: Path) -> None:
    cpuidle(tmp_path, {0: [1], 1: [2]})
    sensor = found(cpu.discover_cores(tmp_path, ME))
    write(tmp_path, {"sys/devices/system/cpu/online": "0\n"})
    values = sensor.read()
    sensor.close()
    assert values[0] == 1000.0
    assert math.isnan(values[1])


def test_a_core_that_comes_online_while_the_training_runs_is_read(tmp_path: Path) -> None:
    cpuidle(tmp_path, {0: [1]})
    write(tmp_path, {"sys/devices/system/cpu/present": "0-1\n"})
    now_ns = [0]
    sensor = found(cpu.discover_cores(tmp_path, Target(1, clock=lambda: now_ns[0])))
    assert [channel.scope for channel in sensor.channels] == ["core:0", "core:1"]
    assert [str(value) for value in sensor.read()] == ["1000.0", "nan"]
    cpuidle(tmp_path, {0: [1], 1: [7]})
    now_ns[0] = 1_000_000_000
    assert list(sensor.read()) == [1000.0, 7000.0]
    sensor.close()


def test_a_core_whose_idle_states_are_there_while_it_is_offline_does_not_look_busy(tmp_path: Path) -> None:
    cpuidle(tmp_path, {0: [1], 1: [7]})
    write(tmp_path, {"sys/devices/system/cpu/present": "0-1\n", "sys/devices/system/cpu/online": "0\n"})
    sensor = found(cpu.discover_cores(tmp_path, ME))
    assert [str(value) for value in sensor.read()] == ["1000.0", "nan"]
    sensor.close()


def test_without_cpuidle_too_a_core_that_comes_online_later_is_read(tmp_path: Path) -> None:
    stat = "cpu  3 0 0 0 0 0 0 0 0 0\ncpu0 1 0 0 0 0 0 0 0 0 0\n{}intr 1\n"
    write(tmp_path, {"sys/devices/system/cpu/present": "0-1\n", "proc/stat": stat.format("")})
    sensor = found(cpu.discover_cores(tmp_path, ME))
    assert [channel.scope for channel in sensor.channels] == ["core:0", "core:1"]
    assert math.isnan(sensor.read()[1])
    write(tmp_path, {"proc/stat": stat.format("cpu1 2 0 0 0 0 0 0 0 0 0\n")})
    values = sensor.read()
    assert values[1] == 2 * values[0]
    sensor.close()


def test_garbage_in_one_idle_state_loses_that_core_alone(tmp_path: Path) -> None:
    cpuidle(tmp_path, {0: [1], 1: [2]})
    sensor = found(cpu.discover_cores(tmp_path, ME))
    write(tmp_path, {"sys/devices/system/cpu/cpu0/cpuidle/state0/time": "what?\n"})
    values = sensor.read()
    sensor.close()
    assert math.isnan(values[0])
    assert values[1] == 2000.0


def test_a_core_whose_idle_states_the_kernel_makes_anew_is_read_again_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuidle(tmp_path, {0: [1, 1], 1: [2, 2]})
    pread, now_ns = os.pread, [0]

    def of_kernfs(file: int, size: int, offset: int) -> bytes:
        if not os.fstat(file).st_nlink:
            raise OSError(errno.ENODEV, "No such device")
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", of_kernfs)
    sensor = found(cpu.discover_cores(tmp_path, Target(1, clock=lambda: now_ns[0])))
    folders = [tmp_path / f"sys/devices/system/cpu/cpu{core}/cpuidle" for core in (0, 1)]
    shutil.rmtree(folders[1])
    for _ in range(2):  # looked for at once, and then once a second
        assert [str(value) for value in sensor.read()] == ["2000.0", "nan"]
    cpuidle(tmp_path, {0: [1, 1], 1: [2, 2, 3]})
    now_ns[0] = 1_000_000_000
    assert list(sensor.read()) == [2000.0, 7000.0]
    for folder in folders:
        shutil.rmtree(folder)
    sensor.read()
    now_ns[0] = 2_000_000_000
    with pytest.raises(OSError, match="no idle state"):
        sensor.read()
    sensor.close()


def test_idle_states_that_would_take_half_of_the_files_of_a_process_leave_the_cores_to_proc_stat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cpuidle(tmp_path, {0: [1, 1], 1: [2, 2]}), {"proc/stat": STAT})
    for limit, quantity in ((8, "core_idle_time"), (7, "core_busy_time")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, 4096))
        sensor = found(cpu.discover_cores(tmp_path, ME))
        sensor.close()
        assert {channel.quantity for channel in sensor.channels} == {quantity}


def test_children_are_not_counted_as_ended_while_no_more_files_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = "(w) S 1 1 1 0 -1 0 1 1 1 1 25 4 0 0 20 0 1 0 100 1000000 250 1 1\n"
    for pid, below in ((1, "7"), (7, "")):
        write(tmp_path, {f"proc/{pid}/task/{pid}/children": below, f"proc/{pid}/stat": f"{pid} {numbers}"})
    now_ns = [0]
    sensor = found(processes.discover_children(tmp_path, Target(1, clock=lambda: now_ns[0])))
    before = list(sensor.read())

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    write(tmp_path, {"proc/1/task/1/children": "7 8", "proc/8/task/8/children": "", "proc/8/stat": f"8 {numbers}"})
    for now_ns[0] in (1_000_000_000, 1_100_000_000):
        with monkeypatch.context() as full:
            full.setattr(os, "open", refuse)
            assert all(map(math.isnan, sensor.read()))
    assert list(sensor.read()) == [2 * value for value in before]
    sensor.close()


@pytest.mark.parametrize("idle", [{0: [5], 1: []}, {0: [0], 1: [0]}])
def test_without_counting_cpuidle_on_every_core_proc_stat_is_read_and_its_tick_stated(
    idle: dict[int, list[int]], tmp_path: Path
) -> None:
    cpuidle(tmp_path, idle)
    write(tmp_path, {"proc/stat": STAT})
    sensor = found(cpu.discover_cores(tmp_path, ME))
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert {channel.refresh_ns for channel in sensor.channels} == {tick_ns}
    assert [channel.id for channel in sensor.channels] == ["core0.busy", "core1.busy"]
    assert list(sensor.read()) == [20 * tick_ns, 24 * tick_ns]  # no idle, iowait or steal
    sensor.close()


@pytest.mark.parametrize(
    "line", [b"cpu0 1_0 0 0 0 0 0 0 0", b"cpu0 +1 0 0 0 0 0 0 0", b"cpu0 1 0 " + b"9" * 40 + b" 0 0 0 0"]
)
def test_what_python_alone_would_take_for_a_number_is_none_in_proc_stat(line: bytes) -> None:
    with pytest.raises(ValueError, match="no counts"):
        cpu.busy_ticks(b"cpu  1 0 0 0 0 0 0\n" + line + b"\nintr 5\n")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"a 1\nab 2\n", b"2"), (b"ab 3", b"3"), (b"ab \nc 4\n", b""), (b"cab 5\n", b""), (b"", b""),
        (b"x\nab   6 kB", b"6"),
    ],
)  # fmt: skip
def test_the_word_after_a_label_is_of_its_line(text: bytes, word: bytes) -> None:
    assert word_after(b"ab ", text) == word


def test_a_core_that_leaves_proc_stat_reads_nan(tmp_path: Path) -> None:
    write(tmp_path, {"proc/stat": STAT})
    sensor = found(cpu.discover_cores(tmp_path, ME))
    write(tmp_path, {"proc/stat": STAT.replace("cpu0 10 1 2 400 7 3 4 9 0 0\n", "")})
    values = sensor.read()
    sensor.close()
    assert math.isnan(values[0])
    assert values[1] > 0


@pytest.mark.parametrize(
    ("text", "cores"), [(b"0-3\n", {0, 1, 2, 3}), (b"0,2-3,7", {0, 2, 3, 7}), (b"5\n", {5}), (b"\n", set())]
)
def test_a_kernel_list_of_cores_is_understood(text: bytes, cores: set[int]) -> None:
    assert cpu.cores_online(text) == cores


def test_process_cpu_from_proc_stat_reads_past_a_name_with_brackets(tmp_path: Path) -> None:
    write(tmp_path, {"proc/4711/stat": PROCESS_STAT})
    sensor = found(cpu.discover_process(tmp_path, ME))
    assert list(sensor.read()) == [168 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")]
    assert sensor.channels[0].refresh_ns == 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    sensor.close()


def test_resident_memory_is_pages_of_statm_and_nothing_after_the_end(tmp_path: Path) -> None:
    write(tmp_path, {"proc/4711/statm": "100 25 3 1 0 7 0\n"})
    sensor = found(process_memory.discover(tmp_path, ME))
    assert list(sensor.read()) == [25 * os.sysconf("SC_PAGE_SIZE")]
    write(tmp_path, {"proc/4711/statm": "0 0 0 0 0 0 0\n"})  # what a zombie says
    assert math.isnan(sensor.read()[0])
    sensor.close()


def test_pss_alone_is_measured_where_there_is_no_status(tmp_path: Path) -> None:
    write(tmp_path, {"proc/4711/smaps_rollup": "5-7 ---p 0 0 0 [rollup]\nRss: 20 kB\nPss:      8 kB\nPss_Anon: 1 kB\n"})
    sensor = found(process_memory_map.discover(tmp_path, ME))
    assert [channel.quantity for channel in sensor.channels] == ["pss"]
    assert list(sensor.read()) == [8192.0]
    assert sensor.every_ns >= 100_000_000
    sensor.close()


def test_a_child_that_ends_keeps_its_cpu_time_in_the_sum_and_gives_back_its_memory(tmp_path: Path) -> None:
    tick_ns, page = 1_000_000_000 // os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    now = [0]
    tree = {"proc/4711/task/4711/children": "5 6 ", "proc/5/task/5/children": "", "proc/5/stat": PROCESS_STAT}
    write(tmp_path, {**tree, "proc/6/stat": PROCESS_STAT.replace("2048", "1")})
    sensor = found(processes.discover_children(tmp_path, Target(4711, clock=lambda: now[0])))
    assert list(sensor.read()) == [2 * 168 * tick_ns, 2049 * page]
    write(tmp_path, {"proc/4711/task/4711/children": "6 "})
    now[0] += 1_000_000_000
    assert list(sensor.read()) == [2 * 168 * tick_ns, page]
    sensor.close()


def test_a_kernel_that_lists_children_and_not_their_memory_needs_no_other_option(tmp_path: Path) -> None:
    write(tmp_path, {"proc/1/task/1/children": ""})
    answer = processes.discover_memory(tmp_path, Target(1))
    assert answer == NoSensor("absent", f"{tmp_path}/proc/1/smaps_rollup: No such file or directory")
    (tmp_path / "proc/1/task/1/children").unlink()
    for discover in (processes.discover_memory, processes.discover_children):
        assert getattr(discover(tmp_path, Target(1)), "remedy", "") == "a kernel with CONFIG_PROC_CHILDREN=y"


def test_grandchildren_count_as_children_and_the_sampler_does_not(tmp_path: Path) -> None:
    write(tmp_path, {"4711/task/4711/children": f"5 {os.getpid()}", "5/task/5/children": "", "5/task/8/children": "9"})
    assert processes.descendants(tmp_path, 4711) == {5, 9}


def test_available_memory_and_used_swap_come_from_meminfo(tmp_path: Path) -> None:
    lines = "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:    4 kB\nCached: 1 kB\nSwapTotal: 8 kB\nSwapFree:  5 kB\n"
    sensor = found(system_memory.discover(write(tmp_path, {"proc/meminfo": lines}), ME))
    assert list(sensor.read()) == [4096, 3072]
    sensor.close()


def test_a_kernel_without_memavailable_is_unsupported(tmp_path: Path) -> None:
    answer = system_memory.discover(write(tmp_path, {"proc/meminfo": "MemFree: 1 kB\n"}), ME)
    assert isinstance(answer, NoSensor)
    assert answer.reason == "unsupported"


def test_the_cores_of_a_cluster_share_the_clock_of_their_policy(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpufreq"
    write(tmp_path, {f"{folder}/policy0/related_cpus": "0 3 4\n", f"{folder}/policy0/scaling_cur_freq": "345600\n"})
    write(tmp_path, {f"{folder}/policy1/related_cpus": "1 2\n", f"{folder}/policy1/scaling_cur_freq": "<unknown>\n"})
    sensor = found(cpu_frequency.discover(tmp_path, ME))
    assert [channel.scope for channel in sensor.channels] == ["core:0", "core:3", "core:4", "core:1", "core:2"]
    values = sensor.read()
    sensor.close()
    assert list(values[:3]) == [345_600_000.0] * 3
    assert all(math.isnan(value) for value in values[3:])


@pytest.mark.parametrize(
    ("text", "celsius"), [("42500\n", 42.5), ("-5000\n", -5.0), ("0\n", 0.0), ("-256000\n", None), ("n/a\n", None)]
)
def test_a_thermal_zone_reads_degrees_or_nothing(text: str, celsius: float | None, tmp_path: Path) -> None:
    zone = "sys/class/thermal/thermal_zone0"
    sensor = found(temperature.discover(write(tmp_path, {f"{zone}/type": "GPU-therm\n", f"{zone}/temp": text}), ME))
    value = sensor.read()[0]
    sensor.close()
    assert sensor.channels[0].scope == "zone:GPU-therm"
    assert math.isnan(value) if celsius is None else value == celsius


def test_a_zone_that_answers_eagain_reads_nan_while_the_other_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1):
        zone = f"sys/class/thermal/thermal_zone{number}"
        write(tmp_path, {f"{zone}/type": "acpitz\n", f"{zone}/temp": "50000\n"})
    sensor = found(temperature.discover(tmp_path, ME))
    assert [channel.scope for channel in sensor.channels] == ["zone:acpitz", "zone:acpitz#2"]
    pread = os.pread
    refused: list[int] = []

    def once_eagain(file: int, size: int, offset: int) -> bytes:
        if not refused:
            refused.append(file)
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", once_eagain)
    values = sensor.read()
    monkeypatch.undo()
    sensor.close()
    assert math.isnan(values[0])
    assert values[1] == 50.0


@pytest.mark.parametrize(
    ("back", "reads"),
    [
        ({2: ("gpu", "52000")}, 52.0),  # its driver is there again
        ({2: ("nvme", "70000")}, None),  # another driver has its number now
        ({2: ("nvme", "70000"), 5: ("gpu", "52000")}, 52.0),
        ({5: ("gpu", "52000"), 6: ("gpu", "53000")}, None),  # which of them it is cannot be told
        ({}, None),
    ],
)
def test_a_zone_that_goes_is_read_again_when_it_is_back_while_others_stay(
    back: dict[int, tuple[str, str]], reads: float | None, tmp_path: Path
) -> None:
    zones, now_ns = tmp_path / "sys/class/thermal", [0]

    def add(number: int, kind: str, text: str) -> None:
        write(zones, {f"thermal_zone{number}/type": f"{kind}\n", f"thermal_zone{number}/temp": f"{text}\n"})

    add(0, "cpu", "41000")
    add(2, "gpu", "42000")
    sensor = found(temperature.discover(tmp_path, Target(1, clock=lambda: now_ns[0])))
    assert list(sensor.read()) == [41.0, 42.0]
    shutil.rmtree(zones / "thermal_zone2")
    assert [str(value) for value in sensor.read()] == ["41.0", "nan"]
    for number, (kind, text) in back.items():
        add(number, kind, text)
    now_ns[0] = 1_000_000_000
    assert [str(value) for value in sensor.read()] == ["41.0", str(reads or math.nan)]
    sensor.close()


def test_the_zone_that_is_left_of_two_alike_is_never_read_as_the_other(tmp_path: Path) -> None:
    now_ns = [0]
    for number in (0, 1):
        zone = f"sys/class/thermal/thermal_zone{number}"
        write(tmp_path, {f"{zone}/type": "acpitz\n", f"{zone}/temp": f"5{number}000\n"})
    sensor = found(temperature.discover(tmp_path, Target(1, clock=lambda: now_ns[0])))
    shutil.rmtree(tmp_path / "sys/class/thermal/thermal_zone0")
    for now_ns[0] in (0, 1_000_000_000):
        assert [str(value) for value in sensor.read()] == ["nan", "51.0"]
    sensor.close()


@given(st.binary(max_size=40))
def test_no_content_of_a_zone_crashes_the_sensor_or_invents_a_temperature(content: bytes) -> None:
    value = number_files.celsius(content)
    assert math.isnan(value) or (-60 <= value <= 200 and value == int(content) / 1000)


def test_a_zone_that_cannot_be_opened_or_has_no_name_costs_no_other(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"sys/class/thermal/thermal_zone{number}").mkdir(parents=True)
    for number in (1, 2):
        (tmp_path / f"sys/class/thermal/thermal_zone{number}/temp").write_text(f"4{number}000\n")
    (tmp_path / "sys/class/thermal/thermal_zone1/type").write_text("cpu\n")
    sensor = temperature.discover(tmp_path, Target(1))
    assert isinstance(sensor, OpenSensor)
    names = [channel.id for channel in sensor.channels]
    assert dict(zip(names, sensor.read(), strict=True)) == {
        "zone.cpu.temperature": 41.0,
        "zone.thermal_zone2.temperature": 42.0,
    }
    sensor.close()


def test_a_policy_without_its_list_of_cores_costs_no_other(tmp_path: Path) -> None:
    for number, cores in ((0, "0 1\n"), (2, "two\n")):
        policy = tmp_path / f"sys/devices/system/cpu/cpufreq/policy{number}"
        policy.mkdir(parents=True)
        (policy / "related_cpus").write_text(cores)
        (policy / "scaling_cur_freq").write_text("1800000\n")
    sensor = cpu_frequency.discover(tmp_path, Target(1))
    assert isinstance(sensor, OpenSensor)
    assert list(sensor.read()) == [1.8e9, 1.8e9]
    sensor.close()


@pytest.mark.parametrize("text", [b"0-4294967295", b"5-2", b"1_0", b"-3", b"all"])
def test_what_is_no_kernel_list_of_cores_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a "):
        cpu.cores_online(text)


def test_more_free_swap_than_there_is_leaves_the_swap_unread() -> None:
    available, swap = number_files.available_and_swap(b"MemAvailable: 8 kB\nSwapTotal: 2 kB\nSwapFree: 3 kB\n")
    assert available == 8192
    assert swap != swap


def test_a_child_whose_numbers_are_garbage_is_not_one_that_has_ended(tmp_path: Path) -> None:
    numbers = "(w) S 1 1 1 0 -1 0 1 1 1 1 25 4 0 0 20 0 1 0 100 1000000 250 1 1\n"
    for pid, below in ((1, "7"), (7, "")):
        (tmp_path / f"proc/{pid}/task/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/task/{pid}/children").write_text(below)
        (tmp_path / f"proc/{pid}/stat").write_text(f"{pid} {numbers}")
    sensor = processes.discover_children(tmp_path, Target(1, clock=lambda: 0))
    assert isinstance(sensor, OpenSensor)
    before = list(sensor.read())
    (tmp_path / "proc/7/stat").write_text("7 (w) garbage\n")
    assert all(value != value for value in sensor.read())
    (tmp_path / "proc/7/stat").write_text(f"7 {numbers}")
    assert list(sensor.read()) == before
    sensor.close()
