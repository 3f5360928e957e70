"""Known points of partial training, and the settings that they were measured with.

The second paper's code (github.com/dereklh4/project_744) masks the filters of LeNet's convolutions and never thaws one.
The points are of that network on 4,000 digits to train and 1,000 to test, plain SGD with 0.01 (its optimizer is made
anew at every step, so its momentum never acts), 5 epochs, two seeds. The batch of the points is not stated: 40 images,
500 updates, repeat all of them at once; with the code's own 64, accuracies are lower throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By way and fraction: % right on the test digits, a value a seed.
POINTS: Mapping[tuple[str, float], tuple[float, ...]] = {
    ("all", 1.0): (87.5, 86.1),
    ("filters", 0.6): (83.3, 83.3),
    ("filters", 0.2): (66.0, 74.3),
    ("cumulative", 0.6): (58.1, 64.0),
    ("cumulative", 0.2): (58.4, 63.8),
}
SECOND_PAPER: Mapping[str, Any] = {
    "workload": "lenet", "data": "mnist-5k", "optimizer": "sgd", "lr": 0.01, "batch": 40, "epochs": 5, "each": "step",
    "ways": ("all", "filters", "cumulative"), "fractions": (0.2, 0.6),
}  # fmt: skip
PRESETS: Mapping[str, Mapping[str, Any]] = {"second-paper": SECOND_PAPER}
