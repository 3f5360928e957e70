"""Which module an optimizer's operations update: known where the optimizer loops over its parameters one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.record.recorders.events import Events
from stepscope.record.recorders.phases import OPTIMIZER_STEP
from stepscope.record.recorders.tree import NO_PARENT, Ints


@dataclass
class OptimizerCalls:
    """Every `optimizer.step()` of a window in order: the module index of each parameter that it updated."""

    parameter_modules: list[list[int]] = field(default_factory=list)


def modules_of_updates(events: Events, parent: Ints, module: Ints, texts: list[str], calls: OptimizerCalls) -> Ints:
    """Modules of the rows below each `Optimizer.step`; rows of fused or foreach updates keep no module.

    A loop over parameters issues the same ops for each, in the order of the parameter groups: where the ops divide
    into as many equal sequences as there are parameters, the k-th sequence is the k-th parameter's.
    """
    is_step = np.array([text.startswith(OPTIMIZER_STEP) for text in texts], dtype=bool)
    scopes = np.flatnonzero(is_step[events.name])
    scopes = scopes[np.argsort(events.t0[scopes], kind="stable")]
    if len(scopes) != len(calls.parameter_modules):
        return module
    found = module.copy()
    for scope, parameters in zip(scopes, calls.parameter_modules, strict=True):
        ops = np.flatnonzero(parent == scope)
        if not parameters or len(ops) == 0 or len(ops) % len(parameters):
            continue
        pattern = events.name[ops].reshape(len(parameters), -1)
        if (pattern == pattern[0]).all():
            found[ops] = np.repeat(parameters, pattern.shape[1])
    return _passed_down(found, parent, scopes)


def _passed_down(module: Ints, parent: Ints, scopes: Ints) -> Ints:
    """Rows below an update belong to the same module; parents come before children within a thread."""
    below = np.zeros(len(parent), dtype=bool)
    below[scopes] = True
    while True:
        children = (parent != NO_PARENT) & below[parent] & ~below
        if not children.any():
            return module
        inherits = children & (module < 0)
        module[inherits] = module[parent[inherits]]
        below |= children
