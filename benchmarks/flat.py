"""What a run of days does to memory: `python -m benchmarks.flat [HOURS]`, growth of training and sampling process.

Sampling: the loop of the sampling process on this machine's sensors and a TX2's, a tick each 10 ms of a clock that does
not wait, with all chores. Training: steps of a small network with adaptive profiling, as fast as they go, counted as
100 ms each. Growth is the resident memory at the end less that after a tenth of the time; 24 h are the same per hour.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

_RESIDENT = """
import sys
from pathlib import Path
def resident():
    import ctypes, gc
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps is no growth
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
"""
_SAMPLING = """
import os
from stepscope.record.sampler import loop
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sensors import survey_sensors
from stepscope.record.sensors.contract import Target
from tests.sensors.jetson_trees import tx2
now = [10**12]
def clock():
    now[0] += 1_000
    return now[0]
events = EventLog(folder / "events.jsonl", clock)
streams = []
(folder / "board").mkdir()
for root in (Path("/"), tx2(folder / "board")):
    (folder / root.name / "samples").mkdir(parents=True, exist_ok=True)
    target = Target(os.getpid(), clock=clock)
    crew = loop.StreamOpener(folder / root.name, root, target, events, 10_000_000)
    found = survey_sensors(root, target).sensors
    streams += [crew._stream(name, answer) for name, answer in found.items() if name in set(crew._sensors)
                and not crew._found.update({name: answer})]
sampling = loop.Sampling(streams, events, target.pace, 10_000_000)
loop.reduce_jitter(None)
for tick in range(steps):
    now[0] = 10**12 + tick * 10_000_000
    sampling.tick(now[0])
    if tick % 24 == 0:
        sampling.chores()
    if tick == steps // 10:
        begun = resident()
size = sum(path.stat().st_size for path in folder.rglob("*.rows")) / 1e6
print(f"{begun:.1f} {resident():.1f} {len(streams)} sensors, {size:.0f} MB of rows")
"""
_TRAINING = """
import torch
from torch import nn
import stepscope
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.randn(4, 16)
with stepscope.profile(model, optimizer, out=folder) as scope:
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        scope.step(loss)
        if step == steps // 10:
            begun = resident()
    ended = resident()
size = sum(path.stat().st_size for path in folder.rglob("ops/*")) / 1e6
print(f"{begun:.1f} {ended:.1f} {steps:,} steps, {size:.0f} MB of operators")
"""
_PER_HOUR = {"sampling": (_SAMPLING, 360_000), "training": (_TRAINING, 36_000)}


def main() -> None:
    """Print resident memory after a tenth and at the end, MB, and what 24 h would add."""
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    for name, (script, per_hour) in _PER_HOUR.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _RESIDENT + script, folder, str(int(hours * per_hour))]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            begun, ended, said = done.stdout.strip().splitlines()[-1].split(" ", 2)
            grown = float(ended) - float(begun)
            print(
                f"{name:<9}{hours:g} h: {begun} -> {ended} MB, {grown / (0.9 * hours) * 24:+.1f} MB in 24 h; {said}",
                flush=True,
            )


if __name__ == "__main__":
    main()
