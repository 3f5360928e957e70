"""`stepscope.profile`: record a training loop of one's own."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import stepscope
from stepscope.errors import StepscopeError, UsageError
from stepscope.record.fault_boundary import fault_text, is_ours
from stepscope.record.framework import framework_of
from stepscope.record.meters import parse_meters
from stepscope.record.run_facts import status_of
from stepscope.record.session import Session
from stepscope.record.settings import Metering, Schedule, Settings, parse_max_disk, sampling_period_ns

if TYPE_CHECKING:
    import jax
    import torch
    from torch import nn

    from stepscope import Run


class Scope:
    """The handle that `profile` gives: `step()` after each optimizer update, `run` once closed."""

    def __init__(self, session: Session | _NoSession, trained: Sequence[Any] = ()) -> None:
        self._session = session
        self._trained = [  # models and optimizers, which belong to the training
            weakref.ref(part) for part in trained if type(part).__weakrefoffset__ != 0
        ]

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._session.path

    @property
    def run(self) -> Run:
        """The finished run, opened for reading; what was written while it went on becomes Parquet now."""
        if self._session.closed:
            self._session.pack()
        return stepscope.Run(self.path)

    def step(self, loss: torch.Tensor | jax.Array | float | None = None, samples: int | None = None) -> None:
        """One training step has ended; its loss and number of samples may be given.

        With JAX it waits for the loss to be computed, and without one for every array.
        """
        try:
            self._session.step(loss, samples)
        except BaseException as error:
            self._failed(error)

    def pause(self) -> None:
        """Exclude what follows, such as evaluation or a checkpoint, from the step: call `resume()` after it."""
        try:
            self._session.pause()
        except BaseException as error:
            self._failed(error)

    def resume(self) -> None:
        """The next step begins now; one that had begun before the pause goes on."""
        try:
            self._session.resume()
        except BaseException as error:
            self._failed(error)

    def tune(self, step: Callable[[Any], Any], batches: Iterable[Any], **settings: Any) -> Any:
        """Try changes on steps made here and now, as `stepscope.tune`; everything is put back, and nothing is recorded.

        step makes one step of a batch. model and optimizer: those that `profile` was given, unless named here.
        """
        alive = [part for part in (reference() for reference in self._trained) if part is not None]
        models = [part for part in alive if _is_module(part)]
        optimizers = [part for part in alive if not _is_module(part)]
        names = ["tune", *(f"tune-{number}" for number in range(2, 1000))]  # each call has a folder of its own
        out = next(path for path in map(self.path.joinpath, names) if not (path / "findings.json").exists())
        defaults = {"model": models, "optimizer": optimizers, "out": out}
        self.pause()
        try:
            with self._session.boundary.muted():
                return stepscope.tune(step, batches, **{**defaults, **settings})
        finally:
            self.resume()

    def inside(self, module: nn.Module | str) -> AbstractContextManager[Any]:
        """A range that counts as a call of this module, where a function of it is called instead: forward, its loss.

        With JAX the name of a layer, as `jax.named_scope`.
        """
        try:
            return self._session.inside(module)
        except BaseException as error:
            self._failed(error)
            return contextlib.nullcontext()

    def note(self, kind: str, message: str, **fields: Any) -> None:
        """Append to the run's events.jsonl."""
        try:
            self._session.note(kind, message, **fields)
        except BaseException as error:
            self._failed(error)

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json."""
        try:
            self._session.update(**fields)
        except BaseException as error:
            self._failed(error)

    def close(self, status: str = "ok", reason: str | None = None) -> None:
        """End the run with a status of `runfolder.STATUSES`, for those who cannot use `with`."""
        try:
            self._session.close(status, reason)
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Raise an exception of the training's again; one of ours ends profiling, and the loop goes on."""
        try:
            self._session.boundary.handle_error(error)
        finally:
            del error  # its traceback has this frame


class SimulatedBoard(Protocol):
    """Result of `stepscope.simulate.start`."""

    board: str
    root: Path


class profile:  # noqa: N801 - reads as torch.profiler.profile does
    """Record a training loop: `with stepscope.profile(model, optimizer, out="runs") as scope: ... scope.step()`.

    model: the model, a list of them, or a dictionary of names to models (only for names and sample counts);
    optimizer: accepted for symmetry, every optimizer of the process is seen. record: see
    `settings.parse_schedule`, or a `stepscope.schedule(wait=, warmup=, active=, repeat=)`. memory: allocations of "all"
    profiled steps, of one or two ("auto"), or "off". period: of the sampler, in s or as "5ms"; period_ms is its old
    name. steps: "calls" of `scope.step()`, or
    "optimizer" for a step at each optimizer step. plugs, meter_commands, power_model, characterise
    and dither: as the options of `stepscope run`. simulation: a board of `stepscope.simulate.start` to read instead of
    this machine. max_disk: bytes that the run may take on the disk, or a text such as "500MB": what is long ago is
    thinned to stay within it. framework: "torch" or "jax" (experimental, docs/guide-jax.md); default: that of what is
    given as model, for JAX the parameters, else the one that is imported. Raises OutputNotWritable and UsageError
    before the loop, and nothing of its own in it.
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        out: str | Path = "runs",
        name: str | None = None,
        record: str | Schedule = "adaptive",
        schedule: Schedule | None = None,
        memory: str = "auto",
        period: float | str = 0.01,
        period_ms: float | None = None,
        steps: str = "calls",
        samples: int | None = None,
        plugs: Sequence[str] = (),
        meter_commands: Sequence[str] = (),
        power_model: str | None = None,
        characterise: bool = True,
        dither: bool = True,
        simulation: SimulatedBoard | None = None,
        max_disk: float | str | None = None,
        framework: str | None = None,
    ) -> None:
        if steps not in ("calls", "optimizer"):
            raise UsageError(f"steps='{steps}' is not known", "choose 'calls' or 'optimizer'")
        if isinstance(model, (str, bytes, int, float)):
            raise UsageError(f"{model!r} is not a model", "stepscope.profile(model, optimizer), or without any")
        self._framework = framework or framework_of(model)
        self._models = model
        self._trained = [*_as_list(model), *_as_list(optimizer)] if self._framework == "torch" else []
        workload = {"optimizer": type(optimizer).__name__} if optimizer is not None else {}
        self._settings = Settings(
            out=out,
            name=name or (type(model).__name__ if _is_module(model) else "loop"),
            record=schedule or record,
            memory=memory,
            period_ns=sampling_period_ns(period, period_ms),
            steps_from=steps,
            samples_per_step=samples,  # checked as the run begins
            root=str(simulation.root) if simulation else os.environ.get("STEPSCOPE_ROOT"),
            metering=Metering(
                parse_meters(plugs, meter_commands),
                power_model,
                characterise,
                dither,
                simulation.board if simulation else None,
                parse_max_disk(max_disk),
            ),
            facts={"workload": workload},
        )
        self._session: Session | _NoSession | None = None

    def __enter__(self) -> Scope:
        models, self._models = self._models, None  # the training's alone from here on: it may let go of them
        trained, self._trained = self._trained, []
        try:
            models = _modules_of(models) if self._framework == "torch" else models
            self._session = Session(self._settings, framework=self._framework)
            self._session.start(models)
        except StepscopeError:
            raise
        except BaseException as error:
            if not is_ours(error):
                raise
            if self._session is None:
                self._session = _NoSession(error, Path(self._settings.out))
            else:
                self._session.boundary.close(error)
            _warn(fault_text(error))
        return Scope(self._session, trained)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        try:
            self._session.close(*status_of(error))
            if self._session.steps == 0 and error is None:
                _warn(f"stepscope recorded no training step: {self._session.why_no_steps()}")
        except BaseException as failure:
            self._session.boundary.handle_error(failure)


class _NoSession:
    """Stand-in for a session that a fault of ours kept from beginning: the loop runs as without one."""

    boundary: Any = SimpleNamespace(muted=contextlib.nullcontext, handle_error=lambda _: None)
    closed, steps = True, 1

    def __init__(self, error: BaseException, path: Path) -> None:
        self.fault, self.path = f"{type(error).__name__}: {error}", path

    def inside(self, _: Any) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def _nothing(self, *_: Any, **__: Any) -> None:
        return None

    step = pause = resume = note = update = close = pack = why_no_steps = _nothing


def _warn(text: str) -> None:
    with contextlib.suppress(RuntimeWarning):  # of those who turn warnings into errors
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _as_list(parts: Any) -> list[Any]:
    """Return the models or optimizers that were given: one, a list, or a dictionary of names."""
    if parts is None:
        return []
    if isinstance(parts, dict):
        return list(parts.values())
    return list(parts) if isinstance(parts, (list, tuple)) else [parts]


def _modules_of(models: Any) -> Any:
    """Return the models that were given to a training with torch, of any iterable a list; UsageError for others."""
    if models is None or _is_module(models) or isinstance(models, (dict, list, tuple)):
        modules = models
    else:
        try:
            modules = list(models)
        except TypeError:
            modules = [models]
    for part in _as_list(modules):
        if not _is_module(part):
            advice = "stepscope.profile(model, optimizer) of an nn.Module, or without a model"
            raise UsageError(f"a {type(part).__name__} is not a model", advice)
    return modules


def _is_module(part: Any) -> bool:
    """Return whether this is a module of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.nn.Module)
