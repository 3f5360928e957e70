"""`stepscope study power-modes`: trainings in each power mode of a Jetson, set with NVIDIA's nvpmodel."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from stepscope.errors import StepscopeError, UsageError
from stepscope.experiments.engine.engine import Plan, PointRefused
from stepscope.experiments.sweeps import PowerModes, TrainingSetting
from stepscope.experiments.sweeps.results import JOULES, LEARNING, SPEED, SweepQuestion, build_findings
from stepscope.experiments.sweeps.trainings import DevicePreparation, training_plan
from stepscope.files import replace_json


def power_mode_plan(jetson: Jetson, request: PowerModes) -> Plan:
    """Train in every mode; the mode of before is set again at the end, however it comes.

    Mode after mode within each round: setting one takes its time, and the board settles in it.
    """
    title, judged = f"The power modes for {request.base.workload}", (SPEED, *JOULES.values(), *LEARNING)
    sweep = SweepQuestion(request.study, title, "mode", lambda setting: mode_label(jetson, setting), judged)
    place = {mode: place for place, mode in enumerate(request.numbers)}
    notes = ["the mode of before was set again at the end"]
    state = DevicePreparation(
        enter=lambda setting: None if setting.mode is None else jetson.set(setting.mode),
        order=lambda setting: place[setting.mode or 0],
        around=lambda folder: restore_mode_after(jetson, folder),
    )
    settings = [replace(request.base, mode=mode) for mode in request.numbers]
    return training_plan(
        settings, request.rules, sweep.label, lambda runs: build_findings(sweep, runs, request.rules, notes), state
    )


def mode_label(jetson: Jetson, setting: TrainingSetting) -> str:
    """A mode by its number and name."""
    return f"{setting.mode} {jetson.modes.get(setting.mode or 0, '')}".strip()


# Modes are read from /etc/nvpmodel.conf, `< POWER_MODEL ID=0 NAME=MAXN >`; `nvpmodel -q` ends with the number of the
# mode that is set, and `nvpmodel -m N` sets one, which takes root. Some modes need a reboot: nvpmodel then asks, gets
# no answer, and the mode stays as it was, which is seen by asking again.

_CONF = "etc/nvpmodel.conf"
_MODE = re.compile(r"^\s*<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+?)\s*>", re.MULTILINE)
_LIMIT_S = 60.0
SAVED_MODE_FILE = "mode-before.json"


class ModeRefused(PointRefused):
    """nvpmodel did not set the mode."""


@dataclass(frozen=True)
class Jetson:
    """A Jetson with its power modes by number."""

    modes: dict[int, str]
    command: str

    def current(self) -> int:
        """The number of the mode that is set."""
        output = self._run_nvpmodel("-q")
        numbers = re.findall(r"^\s*(\d+)\s*$", output, re.MULTILINE)
        if not numbers:
            raise StepscopeError(f"nvpmodel does not say which mode is set: {output.strip()!r}", "run: nvpmodel -q")
        return int(numbers[-1])

    def set(self, mode: int) -> None:
        """Set a mode, and see that it is; ModeRefused where it is not."""
        if self.current() == mode:
            return
        output = self._run_nvpmodel("-m", str(mode))
        if self.current() != mode:
            last = (output.strip().splitlines() or ["it said nothing"])[-1]
            raise ModeRefused(f"the mode {self.modes.get(mode, mode)} was not set: {last}", "it may need a reboot")

    def _run_nvpmodel(self, *arguments: str) -> str:
        try:
            process = subprocess.run(
                [self.command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StepscopeError(f"nvpmodel could not be run: {error}", "run it by hand: nvpmodel -q") from error
        return process.stdout


def find_jetson(root: Path = Path("/")) -> Jetson:
    """The Jetson at hand; UsageError on any other machine."""
    conf, command = root / _CONF, shutil.which("nvpmodel")
    try:
        modes = _MODE.findall(conf.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        modes = []
    if not modes or command is None:
        lacks = f"no modes in '{conf}'" if not modes else "no nvpmodel on the PATH"
        hint = "power modes are known of NVIDIA Jetson boards alone; others: stepscope study threads"
        raise UsageError(f"this machine has no power modes that could be set: {lacks}", hint)
    return Jetson({int(number): name for number, name in modes}, command)


def refuse_without_permission(user: int | None = None) -> None:
    """Raise UsageError before anything is begun unless this is root, who alone may set a mode."""
    if (os.geteuid() if user is None else user) != 0:
        raise UsageError(
            "setting a power mode takes root", "sudo stepscope study power-modes ..., or leave --apply out"
        )


@contextlib.contextmanager
def restore_mode_after(jetson: Jetson, folder: Path) -> Iterator[int]:
    """Whatever happens inside, the mode of before is set again at the end: also after Ctrl-C, SIGTERM, the end of the
    terminal (SIGHUP) or an exception.

    The mode of before is written down first, so that after a power cut the next call puts it back.
    """
    note = folder / SAVED_MODE_FILE
    before: int | None = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        before = int(json.loads(note.read_text(encoding="utf-8"))["mode"])
    if before is None:
        before = jetson.current()
        replace_json(note, {"mode": before}, durable=True)
    with _signals_as_exceptions():
        try:
            yield before
        finally:
            with _ignore_signals():
                jetson.set(before)
                note.unlink(missing_ok=True)


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP as exceptions, so that what has to be put back is; `nohup` keeps its meaning."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    hung_up = signal.SIG_IGN if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else end
    with _signal_handled_by(signal.SIGTERM, end), _signal_handled_by(signal.SIGHUP, hung_up):
        yield


@contextlib.contextmanager
def _ignore_signals() -> Iterator[None]:
    """A second Ctrl-C does not keep the mode from being put back."""
    with contextlib.ExitStack() as ignored:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            ignored.enter_context(_signal_handled_by(number, signal.SIG_IGN))
        yield


@contextlib.contextmanager
def _signal_handled_by(
    number: signal.Signals, by: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[None]:
    before = signal.signal(number, by)
    try:
        yield
    finally:
        signal.signal(number, before)
