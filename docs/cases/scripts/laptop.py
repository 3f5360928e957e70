"""A laptop that gets hot, SIMULATED: another process stops this one for part of each 10 ms, as Intel's powerclamp.

Hot after 4 s, it runs 40 % of the time. With `--cap` it is limited from the start: 75 % of the time, and never hot.
"""

import argparse
import os
import signal
import subprocess
import sys

import torch
from torch import nn

HEAT = """
import os, signal, sys, time
process, wait_s, share = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
time.sleep(wait_s)
try:
    while os.getppid() == process:
        os.kill(process, signal.SIGSTOP)
        time.sleep(0.010 * (1 - share))
        os.kill(process, signal.SIGCONT)
        time.sleep(0.010 * share)
except ProcessLookupError:
    pass
"""

parser = argparse.ArgumentParser()
parser.add_argument("--cap", action="store_true")
parser.add_argument("--steps", type=int, default=3000)
options = parser.parse_args()
heat = ("0", "0.75") if options.cap else ("4", "0.4")
laptop = subprocess.Popen([sys.executable, "-c", HEAT, str(os.getpid()), *heat])
try:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(128, 512), torch.randint(10, (128,))
    for _ in range(options.steps):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
finally:
    laptop.send_signal(signal.SIGTERM)
    laptop.wait()
