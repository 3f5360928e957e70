"""A training with a configuration that `stepscope tune --apply` wrote: a workload, or an unmodified script."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnknownName
from stepscope.experiments.tune.changes import Change, offered, switched
from stepscope.experiments.tune.config import Config, read_config

if TYPE_CHECKING:
    from torch import Tensor

    from stepscope.workloads.contract import Batch, Training, Workload

TO_SCRIPTS = "stepscope.experiments.tune.run_with_config:apply_to_script"
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
    known = offered(config.facts)
    for name in config.changes:
        if name not in known:
            raise UnknownName("change", name, known)
    return [known[name] for name in config.changes]


def configured(workload: Workload, config: Config) -> Workload:
    """Return the workload with these changes, made once its first step has shown which modules it calls."""
    changes = changes_of(config)
    if not changes:
        return workload
    from stepscope.experiments.tune.training import Targets, observed

    early = [change for change in changes if change.at_start and change.group != "compile"]
    _kept.enter_context(switched(early, Targets((), ())))
    later = [change for change in changes if change not in early]
    begun: list[bool] = []

    def step(training: Training, batch: Batch) -> Tensor:
        plain = replace(training, workload=workload)
        if begun:
            return plain.step(batch)
        begun.append(True)
        losses: list[Tensor] = []
        seen = observed(lambda: losses.append(plain.step(batch)))
        targets = Targets((training.model,), training.optimizers, tuple(seen.called_modules.values()))
        _kept.enter_context(switched(later, targets))
        return losses[0]

    return replace(workload, step=step)


def apply_to_script(path: str) -> None:
    """In the process of a script, once torch is there: make the changes of a file after its first updates."""
    make_in_script(changes_of(read_config(Path(path))))


def make_in_script(changes: Sequence[Change]) -> None:
    """In the process of a script, once torch is there: make the changes after its first updates."""
    from stepscope.experiments.tune.training import Observer, Targets
    from stepscope.record.boundary import Boundary
    from stepscope.record.torch_hooks import Routes

    early = [change for change in changes if change.at_start and change.group != "compile"]
    _kept.enter_context(switched(early, Targets((), ())))
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
                _kept.enter_context(switched(later, Targets(models, tuple(self.optimizers.values()), models)))

    def failed(error: BaseException) -> None:
        sys.stderr.write(f"stepscope: the configuration could not be used: {type(error).__name__}: {error}\n")

    routes: Routes = Routes(Boundary(failed), Waiting())
    if later:
        routes.install()


def note_of(config: Config, path: str) -> dict[str, Any]:
    """Return what run.json states of a run that was made with a configuration."""
    return {"file": path, "changes": list(config.changes), "environment": dict(config.environment)}
