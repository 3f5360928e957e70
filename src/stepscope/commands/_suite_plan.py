"""From the options of `stepscope suite run` to the plan of a sweep; everything that can be refused is refused here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stepscope.commands._called import words_typed
from stepscope.errors import UnknownName, UsageError
from stepscope.studies.suite.grid import Entry, Grid, numbers, of_tier, words

DEVICES = ("cpu", "cuda")
_SMOKE = {"repeats": 1, "seconds": 4.0, "steps": 40}  # every family within minutes, on two cores


@dataclass(frozen=True)
class Asked:
    """The options as they were typed; null is not given."""

    tier: str | None = None
    workloads: str | None = None
    batch: str | None = None
    optimizers: str | None = None
    precisions: str | None = None
    threads: str | None = None
    device: str | None = None
    repeats: int | None = None
    steps: int | None = None
    seconds: float | None = None
    interval: str | None = None
    cooldown: str | None = None
    memory: str | None = None
    time_limit: str | None = None
    seed: int | None = None

    def given(self) -> list[str]:
        """The options that were given, as they are typed."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]


def chosen(asked: Asked) -> list[Entry]:
    """The workloads that were asked for; the smoke tier unless said."""
    from stepscope.commands._suite_entries import entries, tiers

    named = words("--workloads", asked.workloads)
    tier = asked.tier or (None if named else "smoke")
    return entries(of_tier(tiers(), tier, named))


def grid(asked: Asked, here: bool = True) -> Grid:
    """The axes; UsageError or UnknownName where one cannot be. `here`: the runs are made on this machine."""
    from stepscope.record.precision import PRECISIONS

    device = asked.device or "cpu"
    if device not in DEVICES:
        raise UnknownName("device", device, DEVICES)
    if here:
        _refuse_no_accelerator(device)
    repeats = asked.repeats if asked.repeats is not None else _smoke(asked, "repeats", 3)
    _at_least_one("--repeats", repeats)
    return Grid(
        batches=numbers("--batch", asked.batch),
        optimizers=words("--optimizers", asked.optimizers),
        precisions=words("--precisions", asked.precisions, PRECISIONS) or ("fp32",),
        threads=numbers("--threads", asked.threads),
        device=device,
        repeats=int(repeats),
    )


def rules(asked: Asked, here: bool = True) -> dict[str, Any]:
    """The rules of every run: by steps or by time where one is given, else until the interval is narrow."""
    from stepscope.analysis.memory_model import size_of
    from stepscope.studies.suite.limits import refuse_memory_limit
    from stepscope.studies.suite.rules import Rules, parse_cooldown, seconds_of, share_of

    if asked.steps is not None:
        _at_least_one("--steps", asked.steps)
    if asked.seconds is not None and not asked.seconds > 0:
        raise UsageError(f"--seconds {asked.seconds:g}: must be above 0", "for example --seconds 30")
    memory = None if asked.memory is None else size_of(asked.memory)
    if memory is not None:
        refuse_memory_limit(memory)
    celsius, pause_s = parse_cooldown(asked.cooldown, Path("/") if here else None)
    limit_s = 900.0 if asked.time_limit is None else seconds_of("--time-limit", asked.time_limit)
    if limit_s <= 0:
        raise UsageError(f"--time-limit {asked.time_limit}: must be above 0", "for example --time-limit 15min")
    ends = _ends(asked, None if asked.interval is None else share_of("--interval", asked.interval))
    return Rules(**ends, cool_to_celsius=celsius, pause_s=pause_s, memory_bytes=memory, time_limit_s=limit_s,
                 seed=asked.seed or 0).to_dict()  # fmt: skip


def plan(asked: Asked, entries: Sequence[Entry], axes: Grid, name: str, here: bool = True) -> dict[str, Any]:
    """What sweep.json holds, but for the workloads."""
    from stepscope.record.device import describe_device
    from stepscope.studies.suite.limits import HOW

    seed = asked.seed or 0
    return {
        "name": name,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "tier": asked.tier,
        "argv": words_typed(),
        "rules": rules(asked, here),
        "limits": {"memory": HOW if asked.memory else None},
        "device": describe_device(),
        "versions": _versions(),
        "order": [point.to_dict() for point in axes.points(entries, seed)],
    }


def default_out(tier: str | None) -> Path:
    """A folder for a new sweep."""
    return Path("suites") / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{tier or 'sweep'}"


def last_sweep(below: Path = Path("suites")) -> Path:
    """The newest sweep."""
    found = sorted(below.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError(f"there is no sweep in '{below}' to go on with", "name its folder: --resume --out DIR")
    return found[-1].parent


def _ends(asked: Asked, interval: float | None) -> Mapping[str, Any]:
    if (asked.steps, asked.seconds, interval) != (None, None, None):
        return {"steps": asked.steps, "seconds": asked.seconds, "interval": interval}
    if _is_smoke(asked):
        return {"steps": _SMOKE["steps"], "seconds": _SMOKE["seconds"]}
    return {"steps": 1000, "seconds": 60.0, "interval": 0.02}


def _smoke(asked: Asked, name: str, otherwise: int) -> float:
    return _SMOKE[name] if _is_smoke(asked) else otherwise


def _is_smoke(asked: Asked) -> bool:
    return asked.tier == "smoke" or (asked.tier is None and asked.workloads is None)


def _at_least_one(option: str, value: float) -> None:
    if value < 1:
        raise UsageError(f"{option} {value:g}: must be 1 or more", f"for example {option} 3")


def _refuse_no_accelerator(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            raise UsageError(
                f"--device {device}: torch sees no CUDA device here", "leave --device out, or install torch for CUDA"
            )


def _versions() -> dict[str, str]:
    import platform

    import polars
    import torch

    from stepscope import __version__

    return {
        "stepscope": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "polars": polars.__version__,
    }


def differences(kept: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """In what a sweep differs from another plan, a line each."""
    rules = [
        f"  {name.replace('_', ' ')}: {kept['rules'].get(name)} -> {value}"
        for name, value in asked["rules"].items()
        if kept["rules"].get(name) != value
    ]
    for axis in ("workload", "batch", "optimizer", "precision", "threads", "device", "repeat"):
        before, after = ({point[axis] for point in each["order"]} for each in (kept, asked))
        if before != after:
            rules.append(f"  {axis}: {_listed(before)} -> {_listed(after)}")
    return rules


def _listed(values: set[Any]) -> str:
    ordered = sorted(values, key=lambda value: (value is not None, value))
    return ", ".join(map(str, ordered[:8])) + (" ..." if len(ordered) > 8 else "")
