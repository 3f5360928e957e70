"""A configuration in a file: `stepscope tune --apply` writes it, `stepscope run --with` trains with it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import MissingDependency, OutputNotWritable, UnknownName, UsageError
from stepscope.experiments.tune.changes import Change, all_changes, changes_applied
from stepscope.record.c_allocators import jemalloc_library, tcmalloc_library
from stepscope.runfolder.validation import Fields, IntegerRange, parse, read_regular

if TYPE_CHECKING:
    from torch import Tensor

    from stepscope.workloads.contract import Batch, Training, Workload


_MOST_BYTES = 1_000_000
_COUNT = IntegerRange(0, 1 << 40)
_FACTS = {
    **dict.fromkeys(("device", "gpu", "matmul_precision", "cpu_capability", "tcmalloc", "jemalloc", "compiler"), str),
    **dict.fromkeys(("cores", "physical_cores", "interop_threads"), IntegerRange(1, 4096)),
    "threads": IntegerRange(0, 4096),
    **dict.fromkeys(("conv2d", "calls", "calls_without_gradients", "blocks", "batch", "parameters"), _COUNT),
    "first_learning_blocks": {...: str},
    "large_cores": [IntegerRange(0, 4096)],
    **dict.fromkeys(("channels_last", "autocast", "compiled", "zeroes_gradients", "flushes_denormals"), bool),
    **dict.fromkeys(("glibc", "tcmalloc_in_use", "divisible", "losses_known", "float64", "half_precision"), bool),
    **dict.fromkeys(("step_s", "data_share", "prepared_s"), float),
    "loader": Fields({"workers": _COUNT, "stream": bool}, ("workers",)),
    "optimizers": [Fields({"kind": str, "fused": bool, "foreach": bool}, ("kind", "fused", "foreach"))],
    "environment": {...: str},
}  # fmt: skip
_MAY_BE_NULL = {"loader", "tcmalloc", "jemalloc", "compiler", "data_share", "prepared_s"}


@dataclass(frozen=True)
class Config:
    """Changes by name, the environment that they need, and the facts by which they are known."""

    changes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def refuse_bad_config_path(path: Path) -> None:
    """Raise UsageError for a file that a configuration cannot be written to, before anything is measured for it."""
    if path.suffix not in (".toml", ".env"):
        raise UsageError(f"--apply {path}: neither .toml nor .env", "for example --apply stepscope.toml")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"--apply {path}: no file in a folder that exists", "for example --apply stepscope.toml")


def write_config(path: Path, changes: Sequence[Change], facts: Mapping[str, Any], head: str) -> None:
    """Write changes as TOML, or, where the name ends with .env, their environment for a shell.

    UsageError where an environment cannot hold them.
    """
    environment = {name: value for change in changes for name, value in change.environment.items()}
    lines = [f"# {line}" for line in head.splitlines()]
    if path.suffix == ".env":
        inside = [change.name for change in changes if not change.environment]
        if inside:
            raise UsageError(
                f"an environment cannot hold {', '.join(inside)}",
                "write a .toml for stepscope run --with; with --out FOLDER the same command measures nothing twice",
            )
        lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    else:
        lines += [
            f"changes = {json.dumps([change.name for change in changes])}",
            f"facts = {json.dumps(json.dumps(facts))}",
        ]
        lines += ["", "[environment]", *(f"{name} = {json.dumps(value)}" for name, value in environment.items())]
        for change in changes:
            lines += ["", f"# {change.name}:", *(f"#   {line}" for line in change.code.splitlines())]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(f"cannot write '{path}': {error.strerror or error}", "give another file") from error


def read_config(path: Path) -> Config:
    """Read what `write_config` wrote: `name = value` lines, whose values are strings or lists of strings."""
    values: dict[str, Any] = {}
    environment: dict[str, str] = {}
    into: dict[str, Any] = values
    try:
        text = read_regular(path.resolve(), _MOST_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        complaint = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"--with {path}: {complaint}", "stepscope tune --apply writes one") from error
    for index, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        if words == "[environment]":
            into = environment
            continue
        name, equals, value = (part.strip() for part in words.partition("="))
        try:
            into[name] = json.loads(value)
        except (ValueError, RecursionError):
            equals = ""
        if not equals:
            raise UsageError(
                f'--with {path}: line {index} is not `name = "value"`: {words[:80]}', "stepscope tune --apply"
            )
    for name, setting in environment.items():
        if not _is_of_a_change(name, setting):
            raise UsageError(
                f"--with {path}: no change of Stepscope sets {name}={setting}", "set it yourself, where you mean it"
            )
    changes = values.get("changes", [])
    if not isinstance(changes, list) or not all(isinstance(name, str) for name in changes):
        raise UsageError(f"--with {path}: changes is no list of names", "stepscope tune --apply writes one")
    return Config(tuple(changes), environment, _checked_facts(path, values.get("facts", "{}")))


def _checked_facts(path: Path, text: Any) -> dict[str, Any]:
    """Return the facts of a configuration; UsageError where one cannot be: they say which changes there are."""
    try:
        facts, dropped = parse(text.encode(), _FACTS)
        dropped += [name for name, value in facts.items() if value is None and name not in _MAY_BE_NULL]
    except (AttributeError, ValueError) as error:
        raise UsageError(f"--with {path}: facts that are none: {error}", "stepscope tune --apply writes one") from error
    if dropped:
        raise UsageError(f"--with {path}: facts that cannot be: {dropped[0]}", "stepscope tune --apply writes one")
    return dict(facts)


def _is_of_a_change(name: str, value: Any) -> bool:
    """Return whether a change sets this variable to this value: another library would be loaded, other memory taken."""
    if name != "LD_PRELOAD":
        return any(
            name in change.environment and change.environment[name] == value for change in all_changes({}).values()
        )
    libraries = [jemalloc_library()]
    with contextlib.suppress(MissingDependency):
        libraries.append(tcmalloc_library())
    first, *others = value.split(":")
    users = os.environ.get("LD_PRELOAD", "")  # those are loaded as it is
    is_ours = first in [str(library) for library in libraries if library is not None]
    return is_ours and (not others or ":".join(others) in (users, users.partition(":")[2]))


# A training with a configuration that `stepscope tune --apply` wrote: a workload, or an unmodified script.

TO_SCRIPTS = "stepscope.experiments.tune.config:apply_to_script"
_UPDATES = 3  # of optimizers, before the models of a script are known
_kept = contextlib.ExitStack()  # as long as the process lives: the whole training is meant
atexit.register(_kept.close)


def restart_with(config: Config) -> None:
    """Have this process start anew, with the same command line, where its environment is not the configuration's."""
    if all(os.environ.get(name) == value for name, value in config.environment.items()):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **config.environment})


def changes_of(config: Config) -> list[Change]:
    """Return the changes of a configuration; UnknownName for one that there is not."""
    if not config.changes:
        return []
    by_name = all_changes(config.facts)
    for name in config.changes:
        if name not in by_name:
            raise UnknownName("change", name, by_name)
    return [by_name[name] for name in config.changes]


def refuse_no_parts(
    config: Config, workload: Workload | None = None, batch: int | None = None, precision: str | None = None
) -> None:
    """Raise UsageError where a batch was to be divided and cannot be: no workload makes the step, or not like that."""
    size = 0 if workload is None else batch or workload.default_batch
    facts = {**config.facts, "divisible": workload is not None and workload.step is None, "batch": size}
    for change in changes_of(replace(config, facts=facts)):
        scaled = "the loss of fp16 is scaled for a whole batch" if precision == "fp16" else ""
        if change.group == "accumulate" and (change.refused or scaled):
            raise UsageError(
                f"--with: {change.name} cannot be made: {change.refused or scaled}", "take it out of the file"
            )


def apply_to_workload(workload: Workload, config: Config) -> Workload:
    """Return the workload with these changes, made once its first step has shown which modules it calls."""
    changes = changes_of(config)
    if not changes:
        return workload
    from stepscope.experiments.tune.training import Targets
    from stepscope.workloads.contract import Workload

    early = [change for change in changes if change.at_start and change.group != "compile"]
    _kept.enter_context(changes_applied(early, Targets((), ())))
    later = [change for change in changes if change not in early]

    class Changed(Workload):
        """A workload whose prepared training is changed: what else wraps its loss or step does so below the changes."""

        def prepare(self, *args: Any, **choices: Any) -> Training:
            plain = super().prepare(*args, **choices)
            return replace(plain, workload=replace(self, step=_changed_step(plain, later)))

    return Changed(**{field.name: getattr(workload, field.name) for field in fields(workload)})


def _changed_step(plain: Training, changes: Sequence[Change]) -> Callable[[Training, Batch], Tensor]:
    from stepscope.experiments.tune.child import make_step
    from stepscope.experiments.tune.training import Targets, observe_training

    targets: list[Targets] = []

    def step(_: Training, batch: Batch) -> Tensor:
        loss: Tensor
        if targets:
            loss = make_step(plain, targets[0], batch)
            return loss
        with observe_training() as observer:
            loss = plain.step(batch)
        called = tuple(observer.called_modules.values())
        targets.append(Targets((plain.model,), plain.optimizers, called, observer.evaluated_modules))
        _kept.enter_context(changes_applied(changes, targets[0]))
        return loss

    return step


def apply_to_script(path: str) -> None:
    """Apply the changes of a file in the process of a script, once torch is imported, after the first updates."""
    apply_changes_in_script(changes_of(read_config(Path(path))))


def apply_changes_in_script(changes: Sequence[Change]) -> None:
    """Apply changes in the process of a script, once torch is imported, after the first updates."""
    from stepscope.experiments.tune.training import Observer, Targets
    from stepscope.record.fault_boundary import Boundary
    from stepscope.record.torch_hooks import TorchHooks

    early = [change for change in changes if change.at_start and change.group != "compile"]
    _kept.enter_context(changes_applied(early, Targets((), ())))
    later = [change for change in changes if change not in early]

    class Waiting(Observer):
        """Makes the changes when enough was seen."""

        updates = 0
        made = False

        def after_optimizer(self, optimizer: Any) -> None:
            self.updates += 1

        def called(self, module: Any, args: Any, kwargs: Any) -> None:
            """Between two steps: within an update torch iterates over its hooks, and none may be taken away."""
            super().called(module, args, kwargs)
            if self.updates >= _UPDATES and not self.made:
                self.made = True
                routes.remove()
                models = tuple(self.called_modules.values())
                targets = Targets(models, tuple(self.optimizers.values()), models, self.evaluated_modules)
                _kept.enter_context(changes_applied(later, targets))

    def failed(error: BaseException) -> None:
        sys.stderr.write(f"stepscope: the configuration could not be used: {type(error).__name__}: {error}\n")

    waiting = Waiting()
    routes: TorchHooks = TorchHooks(Boundary(failed), waiting)

    def tell_unmade() -> None:
        if waiting.updates and not waiting.made:  # else this process trains nothing
            names = ", ".join(change.name for change in later)
            why = f"they are made after {_UPDATES} updates of an optimizer, of which there were {waiting.updates}"
            sys.stderr.write(f"stepscope: the configuration was not used ({names}): {why}\n")

    if later:
        routes.install()
        atexit.register(tell_unmade)


def note_of(config: Config, path: str) -> dict[str, Any]:
    """Return what run.json states of a run that was made with a configuration."""
    return {"file": path, "changes": list(config.changes), "environment": dict(config.environment)}
