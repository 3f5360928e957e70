"""What happens in the guest: doctor, programs of power under the sampler, faults."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from lab.kernel.training import train

from stepscope.clock import read_clocks
from stepscope.record.device import describe_device
from stepscope.record.sampler.process import Sampler, start_sampler
from stepscope.runfolder import RunWriter

OUT = Path("/out")
I2C = Path("/sys/bus/i2c")
STUB = Path("/sys/module/i2c_stub_lab/parameters")
SECONDS = float(os.environ.get("LAB_SECONDS", "60"))
TRAINING_S = SECONDS / 3
Marks = dict[str, tuple[int, int]]


def board(scene: Path, program: str, seconds: float, stdin: int | None = None) -> subprocess.Popen[bytes]:
    """Start the chips on a program; what their registers say goes to truth.csv of the scene."""
    command = [sys.executable, "/lab/board.py", program, "--seconds", str(seconds), "--truth", str(scene / "truth.csv")]
    return subprocess.Popen([*command, "--step", "/lab/step.json"], stdin=stdin)


@contextlib.contextmanager
def sampled(scene: str) -> Iterator[tuple[Path, Marks]]:
    """Sample into a run of the scene; marks are the times of what the scene does, ns."""
    folder = OUT / scene
    folder.mkdir()
    writer = RunWriter.create(folder, scene)
    writer.update(clock=read_clocks(), workload={"name": scene})
    writer.write_device({"start": describe_device(Path("/"))})
    marks: Marks = {}
    sampler = start_sampler(writer.path, timeout_s=120)
    try:
        yield folder, marks
    finally:
        marks["alive until the end"] = (int(sampler.alive()), 0)
        _end(sampler, writer, folder, marks)


def _end(sampler: Sampler, writer: RunWriter, folder: Path, marks: Marks) -> None:
    end = sampler.stop()
    writer.close("ok" if end.exit_code == 0 else "failed", end.message)
    (folder / "marks.json").write_text(json.dumps(marks))


def stepscope(scene: str, *words: str) -> None:
    """Run a command of stepscope; what it says stands in the scene's folder."""
    (OUT / scene).mkdir(exist_ok=True)
    name = "-".join(word.strip("-") for word in words if "/" not in word)
    with (OUT / scene / f"{name}.out").open("wb") as out, (OUT / scene / f"{name}.err").open("wb") as err:
        code = subprocess.run([sys.executable, "-m", "stepscope", *words], stdout=out, stderr=err).returncode
    (OUT / scene / f"{name}.code").write_text(str(code))


def doctor() -> None:
    """Let doctor say what it finds."""
    stepscope("doctor", "doctor")
    stepscope("doctor", "doctor", "--verbose")
    stepscope("doctor", "doctor", "--json")


def programs() -> None:
    """Sample three programs of power, a third of the time each."""
    os.environ["STEPSCOPE_CHARACTERISE"] = "0"
    with sampled("programs") as (folder, marks):
        for program in ("square", "ramp", "recorded"):
            begin = time.monotonic_ns()
            board(folder, program, SECONDS / 3).wait()
            marks[program] = (begin, time.monotonic_ns())


def characterised() -> None:
    """Let doctor characterise the sensors, of chips that follow the load and convert every 10 ms."""
    (OUT / "characterised").mkdir()
    chips = board(OUT / "characterised", "load", 600)
    time.sleep(1)
    stepscope("characterised", "doctor", "--characterise", "--json")
    chips.terminate()
    chips.wait()


def training() -> None:
    """Train in plain Python and numpy under the sampler, on a board whose power follows the phases of the step."""
    os.environ["STEPSCOPE_CHARACTERISE"] = "0"
    with sampled("training") as (folder, marks):
        run = next(path for path in folder.iterdir() if path.is_dir())
        chips = board(folder, "follow", 600, stdin=subprocess.PIPE)
        assert chips.stdin is not None
        tell = chips.stdin
        time.sleep(1)

        def draw(share: float) -> None:
            tell.write(f"{share}\n".encode())
            tell.flush()

        begin = time.monotonic_ns()
        losses = train(RunWriter.attach(run), TRAINING_S, draw)
        marks["training"] = (begin, time.monotonic_ns())
        marks["steps"] = (len(losses), 0)
        (folder / "losses.json").write_text(json.dumps(losses))
        time.sleep(1)
        tell.close()
        chips.wait()
    stepscope("training", "report", str(run))


def faults() -> None:
    """Take things away while sampling, and give them back."""
    os.environ["STEPSCOPE_CHARACTERISE"] = "0"
    ina3221 = next(I2C.glob("drivers/ina3221/*-0040")).name
    with sampled("faults") as (folder, marks):
        chips = board(folder, "square", 600)
        time.sleep(3)
        with _mark(marks, "unbound"):
            (I2C / "drivers/ina3221/unbind").write_text(ina3221)
            time.sleep(4)
            (I2C / "drivers/ina3221/bind").write_text(ina3221)
        time.sleep(4)
        with _mark(marks, "no answer"):
            (STUB / "nack_addr").write_text(str(0x40))
            time.sleep(4)
            (STUB / "nack_addr").write_text("0")
        time.sleep(4)
        with _mark(marks, "slow"):
            (STUB / "delay_us").write_text("3000")
            time.sleep(4)
            (STUB / "delay_us").write_text("0")
        time.sleep(2)
        with _mark(marks, "module removed"):
            subprocess.run(["rmmod", "ina238"], check=True)
            time.sleep(4)
            subprocess.run(["modprobe", "ina238"], check=True)
        time.sleep(4)
        subprocess.run(["rmmod", "test_power"], check=True)  # its exit sleeps for 10 s before the battery goes
        with _mark(marks, "battery removed"):
            time.sleep(4)
            words = "ac_online=off usb_online=off battery_status=discharging battery_voltage=4000 battery_capacity=80"
            subprocess.run(["modprobe", "test_power", *words.split()], check=True)
        time.sleep(5)
        chips.terminate()
        chips.wait()
        with _mark(marks, "bus removed"):
            subprocess.run(["rmmod", "i2c-stub-lab"], check=True)
            time.sleep(3)
            _bus_again()
        time.sleep(6)


def _bus_again() -> None:
    addresses = "chip_addr=0x40,0x44,0x45,0x0b,0x48"
    subprocess.run(["insmod", "/lab/i2c-stub-lab.ko", addresses], check=True)
    subprocess.run([sys.executable, "/lab/board.py", "reset"], check=True)
    bus = next(path.parent.name for path in Path("/sys/class/i2c-adapter").glob("*/name") if "stub" in path.read_text())
    for chip in ("ina3221 0x40", "ina226 0x44", "ina238 0x45", "sbs-battery 0x0b", "lm75 0x48"):
        (I2C / f"devices/{bus}/new_device").write_text(chip)


@contextlib.contextmanager
def _mark(marks: Marks, what: str) -> Iterator[None]:
    begin = time.monotonic_ns()
    yield
    marks[what] = (begin, time.monotonic_ns())


def main() -> None:
    """Play every scene; one that fails says so and the next goes on."""
    wanted = os.environ.get("LAB_SCENES", "doctor programs characterised training faults").split()
    for scene in (doctor, programs, characterised, training, faults):
        if scene.__name__ not in wanted:
            continue
        began = time.monotonic()
        try:
            scene()
        except Exception:
            traceback.print_exc()
            (OUT / f"{scene.__name__}.failed").write_text(traceback.format_exc())
        os.write(1, f"{scene.__name__}: {time.monotonic() - began:.0f} s\n".encode())
        subprocess.run(["tar", "-cf", "/dev/vdb", "-C", str(OUT), "."], check=True)  # what is there so far, too
        os.sync()


if __name__ == "__main__":
    main()
