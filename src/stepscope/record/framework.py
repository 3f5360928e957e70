"""The seam between a session and the framework that trains: a `Recorder` for each framework.

A session knows steps, their numbers and times, the plan, the run folder and the sampler. Its recorder knows the
framework: what tells that a training is under way, when a step's work is done, how a step's ops are recorded, what
layers there are. Neither imports the other; torch is imported by its recorder alone.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from stepscope.errors import MissingDependency, UsageError
from stepscope.record.ops.rows import StepSpan
from stepscope.runfolder import RunWriter

if TYPE_CHECKING:
    from stepscope.record.session import Session

Loss = float | Callable[[], float | None] | None  # what reads it later, from an accelerator; None: not stated
Ended = tuple[int, Loss]  # when a step ended, and its loss


class Recorder(Protocol):
    """A framework's part of a session: steps, windows of op rows, layers and memory rows, and its own overhead.

    Whatever the training calls comes through the session's boundary. Rows of ops and memory go to the run's writer.
    """

    framework: str  # its name in run.json

    # the run

    def attach(self, models: Any) -> None:
        """Observe the training from now on; models: what `stepscope.profile` was given."""

    @property
    def knows_models(self) -> bool:
        """Return whether the first step begins at once, and not with the first sign of a training."""

    def open(self, writer: RunWriter) -> None:
        """Prepare to record into this run."""

    def rehearse(self) -> None:
        """Measure once what recording costs here, before the first step."""

    def finish(self) -> None:
        """The training is over: end the step that is open, where nothing else ends it."""

    def close(self) -> None:
        """Write what is recorded, and record no more."""

    def detach(self) -> None:
        """Stop observing the training and undo every hook; safe to call twice."""

    # steps

    @property
    def recording(self) -> bool:
        """Are ops recorded, here in this thread?"""

    @property
    def paused_ns(self) -> int:
        """Time spent between steps on recording, ns."""

    @property
    def unreported_steps(self) -> int:
        """Number of steps that have ended and were not yet reported to the session."""

    def stepped(self, loss: Any, samples: int | None) -> bool:
        """The training says that a step has ended: True where the recorder needs no more, and reports it later."""

    def wait_for_step(self, loss: Any) -> None:
        """Return once the step's work is done, where the framework works on after its calls have returned."""

    def loss_value(self, loss: Any) -> Loss:
        """The value of a loss, or what reads it later; None where it is no single number."""

    def before_step(self, step: int, elapsed_ns: int, again: bool) -> bool:
        """Open, keep or close the window as the plan says; True where this step is recorded whole."""

    def count_samples(self) -> int | None:
        """Samples of the step that has just ended; None where nothing tells."""

    def after_step(self, span: StepSpan) -> None:
        """A profiled step has ended."""

    def step_ends(self, span: StepSpan) -> bool:
        """Every step's end, profiled or not; True where it was profiled in parts."""

    def may_repeat(self, samples: int | None, flushed_ns: int) -> None:
        """The step that begins is not profiled: if it does what the last one did, it need not be followed."""

    def end_repetition(self) -> bool:
        """Follow every event again: something happens that is no part of a step that repeats. Always False."""

    def pause(self) -> bool:
        """Ignore the training until `resume`; True where work of the open step was seen: it is profiled no further."""

    def resume(self) -> None:
        """Observe the training again."""

    def close_window(self) -> None:
        """End the open window and write it."""

    def layer_scope(self, layer: Any) -> AbstractContextManager[Any]:
        """A range of the step that counts as a call of this layer."""

    # results

    def model_rows(self) -> list[dict[str, Any]]:
        """Rows of model.json, parents before children."""

    def early_facts(self) -> dict[str, Any]:
        """Fields of run.json that are known after the warm-up: `threads`."""

    def run_json_fields(self, span_ns: int) -> dict[str, Any]:
        """Fields of run.json at the end of a run of this length: `recorder`, `overhead`, `threads`, versions."""

    def remarks(self) -> list[tuple[str, str]]:
        """(kind, message) of what a reader should know of how the training was seen."""

    def why_no_steps(self) -> str:
        """The reason why no step was found, and what helps."""

    # faults

    def report_ended_steps(self) -> None:
        """Report steps that have ended and are not yet reported to the session."""

    def abandon_window(self, why: str) -> None:
        """Drop the open window without writing it."""

    def note_fork(self) -> None:
        """Note that the process has forked."""

    def discard_in_child(self) -> None:
        """Drop the recording in a forked child: it belongs to the parent."""


# A framework is one row of each: its recorder, and the packages that its parameters and models come from.
_RECORDERS = {
    "torch": ("stepscope.record.torch_recorder", "TorchRecorder"),
    "jax": ("stepscope.record.jax.recorder", "JaxRecorder"),
}
_PACKAGES = {"torch": {"torch"}, "jax": {"jax", "jaxlib", "flax", "equinox", "optax"}}
_MOST_LEAVES = 1_000  # that are looked at
FRAMEWORKS = tuple(_RECORDERS)


def find_recorder(framework: str) -> Callable[[Session], Recorder]:
    """The recorder of a framework; MissingDependency where that is not installed."""
    if framework not in _RECORDERS:
        raise UsageError(f"framework='{framework}' is not known", f"choose one of {', '.join(FRAMEWORKS)}")
    module, name = _RECORDERS[framework]
    try:
        recorder: Callable[[Session], Recorder] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != framework:
            raise
        raise MissingDependency(
            f"{framework} is not installed, and this is a training with it", f"pip install 'stepscope[{framework}]'"
        ) from error
    return recorder


def framework_of(models: Any) -> str:
    """The framework of the models or parameters that `stepscope.profile` was given.

    Where they tell nothing, the one that is imported; torch, where both are. UsageError for numpy arrays without JAX.
    """
    arrays = False
    for thing in itertools.islice(_leaves(models), _MOST_LEAVES):
        packages = {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}
        arrays = arrays or "numpy" in packages
        for framework, own_packages in _PACKAGES.items():
            if packages & own_packages:
                return framework
    imported = [framework for framework in FRAMEWORKS if sys.modules.get(framework) is not None]
    if arrays:  # no model of torch is made of them, and parameters of JAX may be
        if "jax" in imported:
            return "jax"
        raise UsageError("numpy arrays are no model of torch", "stepscope.profile(params, framework='jax'), with JAX")
    return imported[0] if imported else FRAMEWORKS[0]


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield what nested dictionaries, lists and tuples hold; a class of its own counts as it is."""
    if isinstance(value, Mapping) and depth < 20:
        for item in value.values():
            yield from _leaves(item, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 20:
        for item in value:
            yield from _leaves(item, depth + 1)
    elif value is not None:
        yield value
