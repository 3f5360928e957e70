"""Channels that fall silent and meters that stand still: told once, with the seconds that are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.record.sampler.rows import EventLog
from stepscope.record.sampler.stream import MOST_EVENTS, Liveness
from stepscope.record.sensors.contract import NAN, Channel
from stepscope.runfolder import RunReader

S = 1_000_000_000
POWER = Channel("m.power", "m", "power", "W", "gauge", "system", "x", refresh_ns=S // 100)
ENERGY = Channel("m.energy", "m", "energy", "J", "counter", "system", "x", refresh_ns=S // 100)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text('{"schema": 1}')
    return tmp_path


def watched(run: Path, *channels: Channel) -> Liveness:
    return Liveness("m", channels, EventLog(run / "events.jsonl"))


def told(run: Path) -> list[dict[str, Any]]:
    return RunReader(run).events


def test_a_channel_that_falls_silent_and_comes_back_is_told_with_the_gap(run: Path) -> None:
    liveness = watched(run, POWER, ENERGY)
    for second, value in enumerate([1.0, NAN, NAN, NAN, 2.0]):
        liveness.check_newest_row(second * S, [value, float(second)])
    assert [event["kind"] for event in told(run)] == ["channel-lost", "channel-recovered"]
    assert told(run)[0]["channel"] == "m.power"
    assert told(run)[1]["gap_ns"] == 4 * S


def test_a_channel_that_never_answered_or_missed_one_reading_is_no_event(run: Path) -> None:
    liveness = watched(run, POWER, ENERGY)
    for tick in range(10):
        liveness.check_newest_row(tick * S // 4, [NAN, NAN if tick == 5 else float(tick)])
    assert told(run) == []


def test_an_energy_counter_that_stands_still_is_stale_until_it_moves(run: Path) -> None:
    liveness = watched(run, ENERGY)
    for second, joules in enumerate([1.0, 2.0, *[3.0] * 8, 4.0, 5.0]):
        liveness.check_newest_row(second * S, [joules])
    assert [event["kind"] for event in told(run)] == ["stale", "stale-ended"]
    assert told(run)[1]["gap_ns"] == 8 * S


@pytest.mark.parametrize(
    ("channel", "patience_s"),
    [
        (POWER, 30),
        (replace(POWER, refresh_ns=None), 180),
        (replace(POWER, refresh_ns=30 * S), 600),
        (replace(ENERGY, step_size=3600.0), 3600),  # a plug that counts in Wh
        (replace(ENERGY, refresh_ns=None), 30),
    ],
)
def test_what_may_well_stand_still_for_a_while_is_given_its_time(run: Path, channel: Channel, patience_s: int) -> None:
    liveness = watched(run, channel)
    for second in (0, patience_s):
        liveness.check_newest_row(second * S, [3.0])
    assert told(run) == []
    liveness.check_newest_row((patience_s + 1) * S, [3.0])
    assert [event["kind"] for event in told(run)] == ["stale"]


def test_a_channel_that_comes_and_goes_for_hours_does_not_fill_the_disk(run: Path) -> None:
    liveness = watched(run, POWER)
    for turn in range(4 * MOST_EVENTS):
        liveness.check_newest_row(3 * turn * S, [1.0])
        liveness.check_newest_row(3 * turn * S + S, [NAN])
        liveness.check_newest_row(3 * turn * S + 2 * S, [NAN])
    assert len(told(run)) == MOST_EVENTS
    assert "further ones are not reported" in told(run)[-1]["message"]


def test_one_look_without_a_reading_is_no_loss_however_seldom_the_channel_is_read(run: Path) -> None:
    liveness = watched(run, POWER)
    liveness.check_newest_row(0, [1.0])
    liveness.check_newest_row(5 * S, [NAN])  # its process is ending
    assert told(run) == []
