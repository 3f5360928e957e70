"""`stepscope.Run`: a run folder and what can be said about it, as Polars frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import polars as pl

from stepscope.analysis.anatomy import anatomy
from stepscope.analysis.attributed import AttributedRail, attributed
from stepscope.analysis.attribution.from_run import RunTimelines
from stepscope.analysis.boards import core_clusters
from stepscope.analysis.boards.contract import Board
from stepscope.analysis.energy_by import METHODS, energy_by, refused, resolution
from stepscope.analysis.energy_rows import EnergyTables, energy_tables, samples_per_step, step_energy_table
from stepscope.analysis.kept_tables import kept_table
from stepscope.analysis.memory_events import Peak, memory_over_time, peak
from stepscope.analysis.metrics import metrics
from stepscope.analysis.modules import modules
from stepscope.analysis.not_measured import NotMeasured, not_measured
from stepscope.analysis.op_kinds import op_kinds
from stepscope.analysis.overhead import overhead
from stepscope.analysis.own_time import own_times
from stepscope.analysis.phases import phases
from stepscope.analysis.power_of_ops import power_of_ops
from stepscope.analysis.power_timeline import power_timeline
from stepscope.analysis.rails import RailTree, rail_tree
from stepscope.analysis.regularity import regularity
from stepscope.analysis.utilisation import core_timeline
from stepscope.analysis.utilisation_by import UseOfOps, known_way, use_of_ops, utilisation_by
from stepscope.analysis.verdict import Verdict, verdict
from stepscope.errors import UnknownName
from stepscope.runfolder import RunReader


class Run(RunReader):
    """A run as it lay on disk when it was first read: open it again to see what a running one has added.

    path: its folder, the name of one in `runs`, or "last" for the newest there. Raises RunNotFound, RunDamaged or
    SchemaTooNew where it cannot be read. SI units; null is "not measured".
    """

    # How a notebook shows a run: set by `stepscope`, since analysis does not know what draws it.
    shown_as_html: ClassVar[Callable[[Run], str | None] | None] = None

    def __init__(self, path: str | Path, attribution: str = "fit") -> None:
        """attribution: the method of `energy` where none is asked for: "fit", "nearest", "overlap" or "model"."""
        if attribution not in METHODS:
            raise UnknownName("attribution method", attribution, METHODS)
        super().__init__(path)
        self.attribution = attribution

    def _repr_html_(self) -> str | None:
        """What Jupyter shows; None, and so the plain text, where nothing draws it."""
        draw = type(self).shown_as_html
        return None if draw is None else draw(self)

    @cached_property
    def own_times(self) -> pl.DataFrame:
        """Own times of the recorded steady steps by step, phase, module, kind and device."""
        return own_times(self)

    def modules(self) -> pl.DataFrame:
        """Time of each module, own and of its subtree, forward, backward and optimizer, ns a step."""
        return self._modules

    def op_kinds(self) -> pl.DataFrame:
        """Own time of each kind of op, ns a step by phase."""
        return self._op_kinds

    def phases(self) -> pl.DataFrame:
        """Time of each phase, ns a step, and the residual."""
        return self._phases

    def metrics(self) -> pl.DataFrame:
        """The metrics of the paper, a row each: metric, scope, value, unit, low, high, n, source, note."""
        return self._metrics

    def anatomy(self) -> pl.DataFrame:
        """Every op of the step that is nearest to the median."""
        return self._anatomy

    def overhead(self) -> pl.DataFrame:
        """What the instrument itself cost, columns as `metrics`."""
        return self._overhead

    def memory(self, device: str | None = None) -> pl.DataFrame:
        """Live bytes after each allocation and free of the recorded steps: in all, not attributed, and by category."""
        return memory_over_time(self.memory_events, device)

    def peak(self, device: str | None = None) -> Peak | None:
        """The instant at which the most bytes were alive: op and module, categories, tensors; None: not recorded."""
        return peak(self.memory_events, device)

    def core_timeline(self, t0_ns: int, t1_ns: int) -> pl.DataFrame:
        """Utilisation of each core over time: scope, t0_ns, t1_ns, utilisation (null in gaps)."""
        return core_timeline(self, t0_ns, t1_ns)

    @cached_property
    def rails(self) -> RailTree:
        """The supply lines that were measured, placed in the board's tree."""
        return rail_tree(self)

    @cached_property
    def energy_tables(self) -> EnergyTables:
        """Energy by component and by rail, and sentences on how far to trust it."""
        return energy_tables(self, self.rails)

    @property
    def board(self) -> Board:
        """What is known of the board that this ran on."""
        return self.rails.board

    @property
    def core_clusters(self) -> dict[str, list[int]]:
        """Numbers of the cores of each cluster, such as Denver2 and Cortex-A57, or big and little."""
        return core_clusters(self.device, self.board)

    @property
    def simulated(self) -> str | None:
        """The board that was simulated, where the power of this run is no measurement of this machine."""
        stated = self.meta.get("simulated")
        return None if stated is None else str(stated)

    def energy_totals(self) -> pl.DataFrame:
        """Energy over the steady steps, a row a component, the total first; empty where no power was measured."""
        return self.energy_tables.totals

    def rail_energy(self) -> pl.DataFrame:
        """Energy over the steady steps, a row a rail, with the rail that contains it."""
        return self.energy_tables.rails

    def step_energy(self) -> pl.DataFrame:
        """Energy of each steady step by component, J; null where a gap or the sensor's own pace hides it."""
        return step_energy_table(self, self.rails)

    @cached_property
    def _timelines(self) -> RunTimelines:
        return RunTimelines(self)

    @cached_property
    def attributed_rails(self) -> list[AttributedRail]:
        """Each measured rail with the fit that hands its energy to the ops."""
        return attributed(self, self.rails, self._timelines)

    def energy(self, by: str = "module", method: str | None = None) -> pl.DataFrame:
        """Energy per step, J, by "module", "op", "kind", "phase" or "component", with intervals of 90 % and verdicts.

        method: "fit" (ours), "nearest" (the sample nearest in time, as the 2019 paper), "overlap", or "model" for what
        a power model estimated; None: as this run was opened with. Parts and residual add up to each rail's measured
        total.
        """
        chosen = method or self.attribution
        refused(by, chosen)
        if chosen == "fit":
            return kept_table(self, f"energy-{by}", lambda: self._energy(by, chosen))
        return self._energy(by, chosen)

    def _energy(self, by: str, method: str) -> pl.DataFrame:
        return energy_by(self.attributed_rails, by, method, samples_per_step(self))

    @cached_property
    def use_of_ops(self) -> list[UseOfOps]:
        """Each channel of utilisation with the fit that hands it to the ops."""
        return use_of_ops(self, self._timelines)

    def utilisation(self, by: str = "kind") -> pl.DataFrame:
        """Mean use of CPU (cores), GPU and memory controller (shares) by "kind", "op", "module" or "phase".

        By the machinery of `energy`, with intervals of 90 % and verdicts; empty where nothing of it was sampled.
        """
        known_way(by)
        return kept_table(self, f"utilisation-{by}", lambda: utilisation_by(self.use_of_ops, by))

    def power_of_ops(self) -> pl.DataFrame:
        """Power of each measured rail over the step of `anatomy`, W: from operation to operation, as fitted."""
        ops = self.anatomy()
        step = -1 if ops.is_empty() else int(ops["step"][0])
        return kept_table(self, "power-of-ops", lambda: power_of_ops(self, self.attributed_rails, step))

    def energy_resolution(self) -> pl.DataFrame:
        """A row a rail: the shortest op that it can resolve, how much is resolved, how many more steps would do."""
        return kept_table(self, "resolution", lambda: resolution(self.attributed_rails))

    def power_timeline(self, t0_ns: int, t1_ns: int) -> pl.DataFrame:
        """Power of each rail over time: rail, component, t0_ns, t1_ns, watts (null in gaps), estimated."""
        return power_timeline(self.rails, t0_ns, t1_ns)

    def regularity(self) -> pl.DataFrame:
        """Spread from step to step, period by autocorrelation and changes of level of what was sampled."""
        return regularity(self)

    def verdict(self) -> Verdict:
        """What dominates the step, what it is bound by, and what to try next."""
        return verdict(self)

    def not_measured(self) -> list[NotMeasured]:
        """What this run cannot say, and why."""
        return not_measured(self)

    # A page asks for the same tables many times, and a run of a million operations takes a second for some of them.

    @cached_property
    def _modules(self) -> pl.DataFrame:
        return modules(self)

    @cached_property
    def _op_kinds(self) -> pl.DataFrame:
        return op_kinds(self)

    @cached_property
    def _phases(self) -> pl.DataFrame:
        return phases(self)

    @cached_property
    def _metrics(self) -> pl.DataFrame:
        return metrics(self)

    @cached_property
    def _anatomy(self) -> pl.DataFrame:
        return anatomy(self)

    @cached_property
    def _overhead(self) -> pl.DataFrame:
        return overhead(self)


def opened(run: str | Path | Run, attribution: str = "fit") -> Run:
    """The run itself, or the one of a path, a name in `runs`, or "last"."""
    return run if isinstance(run, Run) else Run(run, attribution)
