"""The points of a sweep: workloads with their definitions, and every combination of the axes in shuffled rounds."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from modulefinder import ModuleFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.errors import UnknownName
from stepscope.record.processes.modules import find_module, module_to_run
from stepscope.request import is_function
from stepscope.units import plural

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


ALL = "all"
OWN = "own"  # the optimizer of a training of the user's own, which a sweep does not choose
Setting = TypeVar("Setting")


def in_rounds(settings: Iterable[Setting], repeats: int, seed: int) -> list[tuple[Setting, int]]:
    """Return every setting with every repeat: in rounds, each shuffled, so that what drifts hits all settings alike."""
    shuffle, every, order = random.Random(seed), list(settings), list[tuple[Setting, int]]()
    for repeat in range(repeats):
        round_ = list(every)
        shuffle.shuffle(round_)
        order += [(setting, repeat) for setting in round_]
    return order


def training_file_digests(target: str, module: bool = False) -> dict[str, str]:
    """Return the files of a training of the user's own with the SHA-256 of each; empty of a shipped workload.

    They are its file and what that imports from beside it, which may be where the model is. module: the target is one,
    as with `python -m`: what lies beside its package counts as well.
    """
    name = target.rpartition(":")[0] if not module and is_function(target) else None
    root = Path().resolve()
    if module:
        spec = module_to_run(target)
        name, path = spec.name, None if spec.origin is None else Path(spec.origin)
        root = root if path is None else path.resolve().parents[name.count(".")]
    else:
        path = training_path(target)
    if path is None or not path.is_file():
        return {}
    root = path.parent.resolve() if name is None else root
    finder = ModuleFinder([str(root)])
    with contextlib.suppress(Exception):  # Python says what is wrong with it when it runs
        finder.run_script(str(path)) if name is None else finder.import_hook(name)
    imported = [Path(module.__file__) for module in finder.modules.values() if module.__file__]  # type: ignore[attr-defined]
    files = {file.relative_to(root).as_posix(): file for file in imported if not file.samefile(path)}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in {path.name: path, **files}.items()}


def training_path(target: str) -> Path | None:
    """Return the file of a script, of a workload in a file, or of a function's module; None where that is nowhere."""
    module, colon, _ = target.rpartition(":")
    if not is_function(target):
        return Path(module if colon and module.endswith(".py") else target)
    spec = find_module(module)
    return None if spec is None or spec.origin is None else Path(spec.origin)


@dataclass(frozen=True)
class WorkloadEntry:
    """A workload as a sweep knows it: names and facts alone, so that a sweep is read where there is no torch.

    `definition` is what two measurements must have in common; `about` is for the reader.
    """

    name: str
    tiers: tuple[str, ...]
    default_batch: int | None  # null: it decides that itself
    default_optimizer: str
    optimizers: tuple[str, ...]
    definition: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""  # the text of its file, to show what has changed


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep; `threads` null is torch's choice, `batch` null the script's own. Repeats count from 0."""

    workload: str
    batch: int | None
    optimizer: str
    precision: str
    threads: int | None
    device: str
    repeat: int

    @property
    def setting(self) -> tuple[str, int | None, str, str, int | None, str]:
        """Return the facts that the repeats have in common."""
        return (self.workload, self.batch, self.optimizer, self.precision, self.threads, self.device)

    @property
    def title(self) -> str:
        """The run in few words, for people."""
        threads = "" if self.threads is None else f" {plural(self.threads, 'thread')}"
        precision = "" if self.precision == "fp32" else f" {self.precision}"
        batch = "" if self.batch is None else f" batch {self.batch}"
        optimizer = "" if self.optimizer == OWN else f" {self.optimizer}"
        return f"{self.workload}{batch}{optimizer}{precision}{threads}, repeat {self.repeat + 1}"

    @property
    def id(self) -> str:
        """A name for files: readable, and unique also where a workload is named by a path."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", self.workload).strip("._") or "workload"
        if name != self.workload:
            name = f"{name[-40:]}-{hashlib.sha256(self.workload.encode()).hexdigest()[:6]}"
        threads = "auto" if self.threads is None else self.threads
        batch = OWN if self.batch is None else self.batch
        return f"{name}-b{batch}-{self.optimizer}-{self.precision}-t{threads}-{self.device}-r{self.repeat}"

    def would_need_more_than(self, other: SweepPoint) -> bool:
        """Return whether this is the same training with a batch at least as large: it needs at least as much memory."""
        alike = self.setting[:1] + self.setting[2:] == other.setting[:1] + other.setting[2:]
        return alike and (self.batch or 0) >= (other.batch or 0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep; an empty axis is each workload's own default."""

    batches: tuple[int, ...] = ()
    optimizers: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("fp32",)
    threads: tuple[int, ...] = ()
    device: str = "cpu"
    repeats: int = 3

    def settings(self, entries: Sequence[WorkloadEntry]) -> list[SweepPoint]:
        """The first repeat of every combination in order, each once."""
        points = [point for entry in entries for point in self._points_of_workload(entry)]
        return list(dict.fromkeys(points))

    def duplicates(self, entries: Sequence[WorkloadEntry]) -> int:
        """Return how many combinations were given more than once."""
        return sum(1 for entry in entries for _ in self._points_of_workload(entry)) - len(self.settings(entries))

    def points(self, entries: Sequence[WorkloadEntry], seed: int) -> list[SweepPoint]:
        """Every run, shuffled within each round of repeats, so that repeats lie far apart in time."""
        return [
            SweepPoint(*point.setting, repeat)
            for point, repeat in in_rounds(self.settings(entries), self.repeats, seed)
        ]

    def _points_of_workload(self, entry: WorkloadEntry) -> Iterator[SweepPoint]:
        for batch in self.batches or (entry.default_batch,):
            for optimizer in self.optimizers or (entry.default_optimizer,):
                if optimizer not in entry.optimizers:
                    raise UnknownName(f"optimizer of '{entry.name}'", optimizer, entry.optimizers)
                for precision in self.precisions:
                    for threads in self.threads or (None,):
                        yield SweepPoint(entry.name, batch, optimizer, precision, threads, self.device, 0)


def names_of_tier(names: Mapping[str, Iterable[str]], tier: str | None, requested: Sequence[str]) -> list[str]:
    """The workloads of a tier, or those of them that are named; `names` has the tiers of each workload.

    A workload of the user's own (`path/to/file.py:name`) belongs to every tier.
    """
    tiers = sorted({tier_name for tiers_of_name in names.values() for tier_name in tiers_of_name})
    if tier is not None and tier not in (*tiers, ALL):
        raise UnknownName("tier", tier, [*tiers, ALL])
    inside = [name for name, tiers_of_name in names.items() if tier in (None, ALL) or tier in tiers_of_name]
    if not requested:
        return inside
    for name in requested:
        if name not in inside and ":" not in name:
            raise UnknownName("workload" if name not in names else f"workload of the tier '{tier}'", name, inside)
    return list(dict.fromkeys(requested))


def find_entries(names: Sequence[str]) -> list[WorkloadEntry]:
    """The workloads of these names, in this order; UnknownName where there is none."""
    from stepscope import workloads

    return [_entry(name, workloads.find(name)) for name in names]


def workload_tiers() -> dict[str, tuple[str, ...]]:
    """The tiers of every workload, by its name."""
    from stepscope import workloads

    return {workload.name: tuple(workload.tiers) for workload in workloads.every()}


def _entry(name: str, workload: Workload) -> WorkloadEntry:
    source = _source(name, workload)
    return WorkloadEntry(
        name=name,
        tiers=tuple(workload.tiers),
        default_batch=workload.default_batch,
        default_optimizer=workload.default_optimizer,
        optimizers=tuple(workload.hyperparameters),
        definition={
            "input_shape": list(workload.input_shape),
            "hyperparameters": {name: dict(values) for name, values in workload.hyperparameters.items()},
            "loss": workload.loss_name,
            "data": _data_set_name(workload),
            **_model_fingerprint(workload),
            "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
        },
        about={
            "domain": workload.domain,
            "summary": workload.summary,
            "published": [asdict(published) for published in workload.published],
        },
        source=source,
    )


def _source(name: str, workload: Workload) -> str:
    """The text of the file that offers the workload; empty where it cannot be read."""
    offering = (module for module in list(sys.modules.values()) if workload in _module_workloads(module))
    path = name.rpartition(":")[0] or getattr(next(offering, None), "__file__", None)
    try:
        return "" if path is None else Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _module_workloads(module: object) -> Collection[object]:
    """Return what a module names as its workloads; a module of another package may name anything so."""
    offered = vars(module).get("WORKLOADS", ()) if hasattr(module, "__dict__") else ()
    return offered if isinstance(offered, (tuple, list)) else ()


def _data_set_name(workload: Workload) -> str | None:
    from stepscope.errors import DataUnavailable

    try:
        return workload.data.name
    except DataUnavailable:
        return None


def _model_fingerprint(workload: Workload) -> dict[str, Any]:
    """Parameters, and a hash of the module tree as torch prints it; built without memory for the parameters."""
    import torch

    try:
        with torch.device("meta"):
            model = workload.build()
    except Exception as error:  # a workload of the user's may raise anything: its runs will say so
        return {"parameters": None, "model_sha256": None, "model_error": type(error).__name__}
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model_sha256": hashlib.sha256(repr(model).encode()).hexdigest(),
    }
