"""`stepscope.Run`: a run folder and what can be said about it, as Polars frames."""

from __future__ import annotations

from functools import cached_property

import polars as pl

from stepscope.analysis.anatomy import anatomy
from stepscope.analysis.metrics import metrics
from stepscope.analysis.modules import modules
from stepscope.analysis.not_measured import NotMeasured, not_measured
from stepscope.analysis.op_kinds import op_kinds
from stepscope.analysis.overhead import overhead
from stepscope.analysis.own_time import own_times
from stepscope.analysis.phases import phases
from stepscope.analysis.utilisation import core_timeline
from stepscope.analysis.verdict import Verdict, verdict
from stepscope.runfolder import RunReader


class Run(RunReader):
    """A run as it lay on disk when it was first read: open it again to see what a running one has added."""

    @cached_property
    def own_times(self) -> pl.DataFrame:
        """Own times of the recorded steady steps by step, phase, module, kind and device."""
        return own_times(self)

    def modules(self) -> pl.DataFrame:
        """Time of each module, own and of its subtree, forward, backward and optimizer, ns a step."""
        return modules(self)

    def op_kinds(self) -> pl.DataFrame:
        """Own time of each kind of op, ns a step by phase."""
        return op_kinds(self)

    def phases(self) -> pl.DataFrame:
        """Time of each phase, ns a step, and the residual."""
        return phases(self)

    def metrics(self) -> pl.DataFrame:
        """The metrics of the paper, a row each: metric, scope, value, unit, low, high, n, source, note."""
        return metrics(self)

    def anatomy(self) -> pl.DataFrame:
        """Every op of the step that is nearest to the median."""
        return anatomy(self)

    def overhead(self) -> pl.DataFrame:
        """What the instrument itself cost, columns as `metrics`."""
        return overhead(self)

    def core_timeline(self, t0_ns: int, t1_ns: int) -> pl.DataFrame:
        """Utilisation of each core over time: scope, t0_ns, t1_ns, utilisation (null in gaps)."""
        return core_timeline(self, t0_ns, t1_ns)

    def verdict(self) -> Verdict:
        """What dominates the step, what it is bound by, and what to try next."""
        return verdict(self)

    def not_measured(self) -> list[NotMeasured]:
        """What this run cannot say, and why."""
        return not_measured(self)
