"""Windows that nothing but memory ends."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch
from tests.patience import HANG_S
from torch import nn

import stepscope
from stepscope.record.gradient_threads import run_at_end_of_thread
from stepscope.record.op_windows import RamAlarm
from stepscope.runfolder import RunReader

ALWAYS = -(10**15)  # less than nothing is resident: the alarm goes off at once


class Interrupted(Exception):
    """What a signal handler of the training raises."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def raise_interrupted(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raise_interrupted)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def busy_until(done: list[int]) -> None:
    """A loop of the training; it sleeps nowhere."""
    end = time.monotonic() + HANG_S
    while not done and time.monotonic() < end:
        sum(range(100))


def test_an_alarm_acts_in_the_main_thread_while_a_loop_of_the_training_goes_on() -> None:
    seen: list[int] = []
    alarm = RamAlarm(lambda: seen.append(threading.get_ident()), ALWAYS)
    alarm.set()
    busy_until(seen)
    alarm.clear()
    assert set(seen) == {threading.main_thread().ident}


def test_an_alarm_is_no_thread_that_the_training_can_list() -> None:
    before = threading.enumerate()
    alarm = RamAlarm(lambda: None)
    alarm.set()
    listed = threading.enumerate()
    alarm.clear()
    assert set(listed) <= set(before)  # one of an earlier test may have ended


def test_an_alarm_that_is_cleared_or_far_from_its_limit_does_nothing() -> None:
    seen: list[int] = []
    cleared, far = RamAlarm(lambda: seen.append(1), ALWAYS), RamAlarm(lambda: seen.append(2), 10**15)
    cleared.set()
    cleared.clear()
    far.set()
    time.sleep(0.2)
    sum(range(100))
    far.clear()
    assert seen == []


READ = """
import time
import numpy as np
from stepscope.record.op_windows import RamAlarm
seen = []
alarm = RamAlarm(lambda: seen.append(1), 100_000_000)
alarm.set()
alarm.clear()
read = np.ones(50_000_000)  # 400 MB, resident and given back
del read
alarm.set()
held = np.ones(20_000_000)  # less than what was resident, more than a window may take
until = time.monotonic() + 900.0
while not seen and time.monotonic() < until:
    sum(range(100))
alarm.clear()
print(len(seen) > 0)
"""


def test_what_reading_a_window_took_is_not_what_the_next_one_may_take() -> None:
    said = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert said.stdout == "True\n", "a process of its own: what ran before in this one had more resident"


def test_a_training_that_has_grown_between_windows_may_keep_what_it_has() -> None:
    seen: list[int] = []
    alarm = RamAlarm(lambda: seen.append(1), 100_000_000)
    alarm.set()
    alarm.clear()
    held = np.ones(20_000_000)
    alarm.set()
    time.sleep(0.2)
    sum(range(100))
    alarm.clear()
    assert seen == []
    assert held.size


@pytest.mark.usefixtures("interrupts")
def test_what_a_signal_handler_raises_while_the_alarm_acts_goes_on_in_the_training() -> None:
    acts: list[int] = []

    def act() -> None:
        acts.append(1)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        time.sleep(HANG_S)

    alarm = RamAlarm(act, ALWAYS)

    def train() -> None:
        alarm.set()
        busy_until([])

    with pytest.raises(Interrupted):
        train()
    alarm.clear()
    assert acts == [1]


def test_an_alarm_that_has_gone_off_is_not_kept_alive() -> None:
    seen: list[int] = []
    alarm = RamAlarm(lambda: seen.append(1), ALWAYS)
    gone = weakref.ref(alarm._pending)
    alarm.set()
    busy_until(seen)
    alarm.clear()
    time.sleep(0.1)  # its thread ends
    sum(range(100))
    del alarm
    gc.collect()
    assert seen
    assert gone() is None


LOOP = """
import resource, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    state = torch.zeros(4)
    with torch.no_grad():
        for _ in range(100_000):
            state = state * 0.5 + 1.0
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, state.tolist())
"""


def test_a_step_of_many_operators_outside_of_modules_fills_no_memory(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP, encoding="utf-8")
    run = ["-m", "stepscope", "run", "-q", "--no-ceilings", "--out", str(tmp_path / "runs")]
    said = {}
    for name, command in (("bare", []), ("profiled", run)):
        ended = subprocess.run(
            [sys.executable, *command, str(tmp_path / "loop.py")], capture_output=True, text=True, check=True
        )
        said[name] = re.fullmatch(r"(\d+) (.*)\n", ended.stdout)
    bare, profiled = said["bare"], said["profiled"]
    assert bare is not None
    assert profiled is not None
    assert profiled[2] == bare[2]
    assert int(profiled[1]) < int(bare[1]) + 800, "MB; all of its events take 1,600"
    (run_folder,) = (tmp_path / "runs").glob("*loop*")
    events = [json.loads(line) for line in (run_folder / "events.jsonl").read_text("utf-8").splitlines()]
    assert {"step-profiled-in-part", "recording-stopped"} <= {event["kind"] for event in events}


def test_after_a_false_alarm_the_training_may_grow_further_within_what_the_machine_has_left() -> None:
    alarm = RamAlarm(lambda: None, 1_000_000)
    alarm.allow_more()
    assert alarm._most_bytes == 4_000_000
    for _ in range(30):
        alarm.allow_more()
    assert 4_000_000 < alarm._most_bytes < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 40


GROWING = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Linear(512, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(4000 + 5000 * step, 64)).pow(2).mean().backward()
    optimizer.step()
"""


def events_of(script: str, record: str, folder: Path) -> list[str]:
    """The kinds of the events of a run of this script."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    run = ["-m", "stepscope", "run", "-q", "--no-ceilings", "--record", record, "--out", str(folder / "runs")]
    subprocess.run([sys.executable, *run, str(folder / "train.py")], capture_output=True, check=True)
    (path,) = (folder / "runs").glob("*train*")
    return [event["kind"] for event in RunReader(path).events]


def test_a_training_whose_batches_grow_is_profiled_whole_after_a_few_false_alarms(tmp_path: Path) -> None:
    kinds = events_of(GROWING, "all", tmp_path)
    assert kinds.count("step-profiled-in-part") <= 4, "of 20; before they were remembered, of almost every one"
    assert "recording-stopped" not in kinds


KEEPING = """
import time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(12):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).pow(2).mean().backward()
    time.sleep(0.2)
    if step == 10:
        kept.append(torch.ones(20_000_000))
        time.sleep(0.2)
    optimizer.step()
"""


def test_a_step_like_those_before_it_is_profiled_whole_though_the_training_keeps_more_memory(tmp_path: Path) -> None:
    assert "step-profiled-in-part" not in events_of(KEEPING, "every:5", tmp_path)


class _Recorder:
    def __init__(self) -> None:
        self.ended = 0

    def thread_ends(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("record", ["all", "adaptive"])
def test_the_last_window_of_a_thread_that_trains_is_written_as_it_ends(tmp_path: Path, record: str) -> None:
    def train() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()

    with stepscope.profile(out=tmp_path, record=record, steps="optimizer") as scope:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    run = RunReader(scope.path)
    assert run.steps.filter("recorded")["step"].to_list() == run.ops["step"].unique().sort().to_list()
    assert "ops-lost" not in [event["kind"] for event in run.events]


def test_a_thread_has_not_ended_when_its_next_window_opens() -> None:
    recorder, seen = _Recorder(), []

    def work() -> None:
        for _ in range(3):
            run_at_end_of_thread(recorder.thread_ends)
            seen.append(recorder.ended)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (seen, recorder.ended) == ([0, 0, 0], 1)
