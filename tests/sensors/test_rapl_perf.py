"""RAPL through perf: what the power PMU's files say, when it is used, and how its counts become joules."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.pc_trees import found, missing, powercap, refuse_opening, watching, write, zone

from stepscope.record.access import perf_event
from stepscope.record.sensors import rapl
from stepscope.record.sensors.rapl import count_events, events

PMU = "sys/bus/event_source/devices/power"
SCALE = "2.3283064365386962890625e-10"
CODES = {"cores": "0x01", "pkg": "0x02", "ram": "0x03", "gpu": "0x04", "psys": "0x05"}


def pmu(root: Path, cpumask: str = "0\n", **changed: str) -> Path:
    """The power PMU of a laptop."""
    files = {"type": "23\n", "cpumask": cpumask}
    for name, code in CODES.items():
        event = f"events/energy-{name}"
        files |= {event: f"event={code}\n", f"{event}.unit": "Joules\n", f"{event}.scale": f"{SCALE}\n"}
    return write(root, {f"{PMU}/{name}": text for name, text in (files | changed).items()})


def topology(root: Path, packages: dict[int, tuple[int, int]]) -> None:
    """Package and die of CPUs."""
    for cpu, (package, die) in packages.items():
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(root, {f"{folder}/physical_package_id": f"{package}\n", f"{folder}/die_id": f"{die}\n"})


def counter(values: dict[int, int]) -> rapl.Opener:
    """An opener whose descriptors read a count by event code."""

    def opener(event_type: int, config: int, cpu: int) -> int:
        assert event_type == 23
        read_end, write_end = os.pipe()
        os.write(write_end, values[config].to_bytes(8, "little") * 4)
        os.close(write_end)
        return read_end

    return opener


def test_the_domains_bear_the_names_that_powercap_gives_them(tmp_path: Path) -> None:
    known = events(pmu(tmp_path))
    assert [(event.domain, event.rail, event.config) for event in known] == [
        ("package-0", "package-0", 2),
        ("psys", "psys", 5),
        ("package-0/core", "core", 1),
        ("package-0/dram", "dram", 3),
        ("package-0/uncore", "uncore", 4),
    ]
    assert {(event.type, event.cpu, event.scale_j) for event in known} == {(23, 0, 2.0**-32)}


def test_counts_become_joules_by_the_scale_and_never_wrap(tmp_path: Path) -> None:
    counts = {1: 1 << 32, 2: 1 << 63, 3: 3 << 31, 4: 0, 5: 1 << 33}
    sensor = found(count_events(events(pmu(tmp_path)), counter(counts)))
    assert list(sensor.read()) == [2.0**31, 2.0, 1.0, 1.5, 0.0]
    sensor.close()
    assert {channel.counter_range for channel in sensor.channels} == {None}
    assert [channel.parent_scope for channel in sensor.channels] == [
        "rapl:psys",
        "system",
        "rapl:package-0",
        "rapl:psys",
        "rapl:package-0",
    ]
    assert sensor.channels[2].id == "rapl.package-0/core.energy"


def test_a_counter_of_a_package_or_system_that_stands_still_is_left_out(tmp_path: Path) -> None:
    counts = {1: 0, 2: 1 << 20, 3: 0, 4: 0, 5: 0}
    sensor = found(count_events(events(pmu(tmp_path)), counter(counts), lambda: None))
    assert "rapl:psys" not in {channel.scope for channel in sensor.channels}
    assert {"rapl:package-0", "rapl:package-0/core"} <= {channel.scope for channel in sensor.channels}
    sensor.close()
    dead = [event for event in events(pmu(tmp_path)) if event.rail == "psys"]
    assert "stand still" in missing(count_events(dead, counter(counts), lambda: None)).detail


def test_each_socket_has_its_package_and_psys_is_counted_once(tmp_path: Path) -> None:
    pmu(tmp_path, "0,18\n")
    topology(tmp_path, {0: (0, 0), 18: (1, 0)})
    assert [(e.domain, e.cpu) for e in events(tmp_path) if e.config in (2, 5)] == [
        ("package-0", 0),
        ("package-1", 18),
        ("psys", 0),
    ]


def test_dies_of_one_package_are_told_apart(tmp_path: Path) -> None:
    pmu(tmp_path, "0,8\n")
    topology(tmp_path, {0: (0, 0), 8: (0, 1)})
    assert [e.domain for e in events(tmp_path) if e.config == 2] == ["package-0-die-0", "package-0-die-1"]


@pytest.mark.parametrize("changed", [{"events/energy-pkg.unit": "mWh\n"}, {"events/energy-pkg.scale": "nan\n"}])
def test_an_event_in_another_unit_is_left_out(changed: dict[str, str], tmp_path: Path) -> None:
    assert 2 not in {event.config for event in events(pmu(tmp_path, **changed))}


def test_an_event_that_the_processor_lacks_is_left_out(tmp_path: Path) -> None:
    really = counter(dict.fromkeys(range(6), 1 << 32))

    def opener(event_type: int, config: int, cpu: int) -> int:
        if config != 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        return really(event_type, config, cpu)

    sensor = found(count_events(events(pmu(tmp_path)), opener))
    assert [channel.scope for channel in sensor.channels] == ["rapl:package-0"]
    sensor.close()


def test_a_refusal_names_the_setting_that_allows_counting(tmp_path: Path) -> None:
    def opener(event_type: int, config: int, cpu: int) -> int:
        raise OSError(errno.EACCES, "Permission denied")

    answer = missing(count_events(events(pmu(tmp_path)), opener))
    assert answer.reason == "denied"
    assert answer.remedy is not None
    assert "kernel.perf_event_paranoid=0" in answer.remedy


def test_events_that_no_longer_count_are_an_error(tmp_path: Path) -> None:
    sensor = found(count_events(events(pmu(tmp_path)), counter(dict.fromkeys(range(6), 1))))
    for _ in range(4):
        sensor.read()
    with pytest.raises(ValueError, match="no event counts"):
        sensor.read()
    sensor.close()


def test_it_stays_out_where_powercap_answers(tmp_path: Path) -> None:
    powercap(pmu(tmp_path), {"intel-rapl:0": zone("package-0", 1)})
    answer = missing(rapl.discover_perf(tmp_path, watching()))
    assert answer.reason == "absent"
    assert "powercap answers" in answer.detail


def test_it_counts_the_running_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    powercap(pmu(tmp_path), {"intel-rapl:0": zone("package-0", 1)})
    refuse_opening(monkeypatch, "energy_uj", errno.EACCES)
    answer = missing(rapl.discover_perf(tmp_path, watching()))
    assert answer.reason == "absent"
    assert "running machine alone" in answer.detail


@pytest.mark.parametrize("text", ["", "\n", "all", "3-", "0,,1", "-1", "999999"])
def test_a_mask_that_is_no_list_of_cpus_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not a |names no CPU"):
        events(pmu(tmp_path, text))


@pytest.mark.parametrize(("text", "cpus"), [("0\n", [0]), ("0,18", [0, 18]), ("0-1,4", [0, 1, 4])])
def test_a_mask_is_a_kernel_list(text: str, cpus: list[int], tmp_path: Path) -> None:
    assert [event.cpu for event in events(pmu(tmp_path, text)) if event.config == 2] == cpus


@settings(max_examples=30, deadline=None)
@given(
    type_=st.binary(max_size=12),
    mask=st.binary(max_size=12) | st.just(b"0-3"),
    event=st.binary(max_size=20),
    scale=st.binary(max_size=30) | st.just(b"inf"),
    die=st.binary(max_size=8),
)
def test_no_content_of_the_pmu_crashes_the_reading_of_it(
    type_: bytes, mask: bytes, event: bytes, scale: bytes, die: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = pmu(Path(folder))
        topology(root, {0: (0, 0), 1: (0, 0)})
        files = {"type": type_, "cpumask": mask, "events/energy-pkg": event, "events/energy-ram.scale": scale}
        write(root, {f"{PMU}/{name}": content for name, content in files.items()})
        write(root, {"sys/devices/system/cpu/cpu1/topology/die_id": die})
        try:
            known = events(root)
        except ValueError:
            return
    assert len({event.domain for event in known}) == len(known)
    assert all(0 < event.scale_j < 1 for event in known)


def test_this_kernel_refuses_or_counts_but_does_not_crash() -> None:
    try:
        descriptor = perf_event.open_event(1, 0, cpu=0)  # the software CPU clock of CPU 0
    except OSError:
        return  # not allowed here; the next test sees that a refusal bears its number
    first = perf_event.read_count(descriptor)
    assert perf_event.read_count(descriptor) >= first >= 0
    os.close(descriptor)


def test_an_event_that_does_not_exist_is_an_error_with_its_number() -> None:
    with pytest.raises(OSError, match=r".+") as raised:
        perf_event.open_event(0x7FFFFFFF, 0, cpu=0)
    assert raised.value.errno
