"""A training whose step times are planted: it answers as a process that is tuned does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepscope.experiments.tune.changes import Change
from stepscope.experiments.tune.device_settings import DeviceSettings
from stepscope.experiments.tune.experiment import Tuning
from stepscope.experiments.tune.pair_statistics import ExperimentStore, TuneRules
from stepscope.experiments.tune.process import TrainingEnded

FACTS: dict[str, Any] = {
    "device": "cpu", "cores": 4, "physical_cores": 4, "large_cores": [], "threads": 4, "conv2d": 3,
    "channels_last": False,
    "calls": 1, "autocast": False, "compiled": False, "zeroes_gradients": False, "matmul_precision": "highest",
    "flushes_denormals": False, "optimizers": [{"kind": "SGD", "fused": False, "foreach": False}], "blocks": 0,
    "loader": {"workers": 0}, "data_share": 0.05, "batch": 16, "divisible": True, "cpu_capability": "AVX512",
    "glibc": True, "tcmalloc": None, "tcmalloc_in_use": False, "compiler": None, "environment": {}, "step_s": 0.01,
    "parameters": 1000,
}  # fmt: skip


class FakeTraining:
    """Steps of 10 ms times the planted ratio of each change; noise as a share.

    broken: changes that end the process, "a + b" only both together.
    """

    def __init__(self, ratios: Mapping[str, float], noise: float = 0.01, broken: Sequence[str] = ()) -> None:
        self.ratios, self.noise, self.broken = ratios, noise, broken
        self.random = random.Random(1)
        self.process_memory: dict[str, float] = {}  # ratios of the peak of a process
        self.blocks: list[tuple[str, ...]] = []
        self.drifts: dict[str, float] = {}
        self.memory: dict[str, float | None] | None = None  # ratios of "a" and of "a + b"; where none, those of time
        self.opened: list[tuple[str, ...]] = []
        self.facts = dict(FACTS)
        self.interrupt_after: int | None = None
        self.at_s = 0.0  # on a clock that only its steps move
        self.load: Callable[[float], float] | None = None
        self.tells_load = False  # as a kernel that tells what other processes use
        self.power: FakePower | None = None
        self.device: DeviceSettings | None = None
        self.run_at: dict[int, tuple[str, ...]] = {}  # changes of the block that began then, ns

    def steps(self, ratio: float, count: int) -> list[float]:
        """Return the times of steps; other load, where there is some at that time, makes each slower."""
        block = 0.01 * ratio * (1 + self.random.gauss(0, self.noise))
        if self.load is None:
            return [block] * count
        found = []
        for _ in range(count):
            slower = self.load(self.at_s)
            found.append(block * slower)
            self.at_s += found[-1]
        return found

    def open_training(self, changes: Sequence[Change], facts: Mapping[str, Any]) -> FakePlace:
        names = tuple(change.name for change in changes)
        self.opened.append(names)
        return FakePlace(self, names)

    def ratio(self, names: tuple[str, ...]) -> float:
        return math.prod(self.ratios.get(name, 1.0) for name in names)

    def step_bytes(self, names: tuple[str, ...]) -> int | None:
        ratio = self.ratio(names) if self.memory is None else self.memory.get(" + ".join(names), 1.0)
        return None if ratio is None else int(1e6 * ratio)

    def tuning(self, seconds: float = 1e6, **more: Any) -> Tuning:
        store = more.pop("store", None)
        apart = more.pop("apart", True)
        rules = TuneRules(seconds, **more)
        kept = store or ExperimentStore()
        tuned = Tuning(self.open_training, rules, kept, apart=apart, power=self.power, device=self.device)
        tuned.run()
        return tuned


class FakePower:
    """Power of 10 W times the planted ratio of each change that runs; a block of which nothing is read: `unread`."""

    def __init__(self, training: FakeTraining, ratios: Mapping[str, float], unread: Sequence[int] = ()) -> None:
        self.training, self.ratios, self.unread = training, ratios, unread
        self.block_s, self.note, self.estimated = 2.0, "Energy is of a plant.", False
        self.spans: list[tuple[int, int]] = []
        self.random = random.Random(2)

    def watts(self, t0_ns: int, t1_ns: int) -> float | None:
        self.spans.append((t0_ns, t1_ns))
        if len(self.spans) in self.unread:
            return None
        ratio = math.prod(self.ratios.get(name, 1.0) for name in self.training.run_at[t0_ns])
        return 10.0 * ratio * (1 + self.random.gauss(0, 0.01))


class FakePlace:
    def __init__(self, training: FakeTraining, at_start: tuple[str, ...]) -> None:
        self.training, self.at_start = training, at_start

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
        training, names = self.training, (*self.at_start, *command.get("changes", ()))
        if any({*broken.split(" + ")} <= {*names} for broken in training.broken):
            raise TrainingEnded("it crashed")
        ratio = training.ratio(names)
        match command["do"]:
            case "facts":
                return training.facts
            case "block":
                if training.interrupt_after is not None and len(training.blocks) >= training.interrupt_after:
                    raise KeyboardInterrupt
                training.blocks.append(names)
                training.steps(ratio, command["warmup"])
                began_s, seconds = training.at_s, training.steps(ratio, command["steps"])
                others = None
                if training.tells_load and training.load is not None:
                    others = training.load((began_s + training.at_s) / 2) - 1
                t0_ns = 10**12 * len(training.blocks)
                training.run_at[t0_ns] = names
                t1_ns = t0_ns + round(1e9 * sum(seconds))
                return {"seconds": seconds, "t0_ns": t0_ns, "t1_ns": t1_ns, "losses": [], "others": others}
            case "losses":
                return {"losses": [1.0 + sum(training.drifts.get(name, 0.0) for name in names)] * command["steps"]}
            case "memory":
                return {"bytes": training.step_bytes(names)}
            case "peak":
                known = (*names, " + ".join(names))  # both together may save more
                least = min(training.process_memory.get(name, 1.0) for name in known)
                return {"process_bytes": int(3e8 * least), "prepared_s": 1.0}
        return {}

    def close(self) -> None:
        """Nothing was started."""
