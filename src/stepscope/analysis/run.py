"""`stepscope.Run`: a run folder and its tables, as Polars frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import polars as pl

from stepscope.analysis.caveats import NotMeasured, not_measured, overhead
from stepscope.analysis.channels import board_computes, board_has_gpu, core_timeline
from stepscope.analysis.device import core_clusters
from stepscope.analysis.device.ceilings import attained_shares
from stepscope.analysis.device.contract import Board
from stepscope.analysis.energy.fit_inputs import RunTimelines
from stepscope.analysis.energy.mean_step import samples_per_step
from stepscope.analysis.energy.operators import (
    METHODS,
    UtilisationFit,
    check_grouping,
    check_utilisation_grouping,
    energy_by,
    fit_utilisation,
    resolution_table,
    utilisation_by,
)
from stepscope.analysis.energy.rail_fits import RailFit, fit_rails, whole_device_rail
from stepscope.analysis.energy.rails import RailTree, rail_tree
from stepscope.analysis.energy.tables import (
    EnergyTables,
    energy_tables,
    operator_power,
    power_timeline,
    step_energy_table,
)
from stepscope.analysis.first_screen import layers
from stepscope.analysis.memory.events import Peak, memory_over_time, peak
from stepscope.analysis.metrics import metrics
from stepscope.analysis.periodicity import regularity
from stepscope.analysis.result_cache import ResultCache, cached_per_run
from stepscope.analysis.summary import rows_of_main_rail
from stepscope.analysis.time.collectives import COLLECTIVE_SCHEMA, CollectiveTime, collective_time
from stepscope.analysis.time.dependencies import Dependencies, dependencies
from stepscope.analysis.time.operators import self_times
from stepscope.analysis.time.overhead_correction import StepTimes, step_times
from stepscope.analysis.time.ranks import Ranks, compare_ranks
from stepscope.analysis.time.tables import median_step_ops, module_table, operator_table, phase_table
from stepscope.analysis.verdict import Verdict, verdict
from stepscope.errors import RunError, UnknownName
from stepscope.plugins import notebook_html
from stepscope.runfolder import RunReader


class Run(RunReader):
    """A run as it lay on disk when it was opened: open it again to see what a running one has added.

    path: its folder, the name of one in `runs`, or "last" for the newest there. Raises RunNotFound, RunDamaged or
    SchemaTooNew where it cannot be read. SI units; null is "not measured".
    """

    def __init__(self, path: str | Path, attribution: str = "fit") -> None:
        """attribution: the method of `energy` where none is asked for: "fit", "nearest", "overlap" or "model"."""
        if attribution not in METHODS:
            raise UnknownName("attribution method", attribution, METHODS)
        self.attribution = attribution
        super().__init__(path)
        _ = self.files  # what results are found from is what lies there now

    @cached_property
    def parts(self) -> Mapping[Path, Run | RunError]:
        """Each part that a further process wrote as a run, or why it cannot be read."""
        return self._open_parts(lambda folder: Run(folder, self.attribution))

    def _repr_html_(self) -> str | None:
        """What Jupyter shows; None, and so the plain text, without the extra `report`."""
        return notebook_html("Run", self)

    @cached_property
    def results(self) -> ResultCache:
        """The results of earlier readers of these files, and those of this one adds."""
        return ResultCache(self)

    @cached_property
    def self_times(self) -> pl.DataFrame:
        """Recorded self times of the profiled steps by step, phase, module, operator and device."""
        return self_times(self, self.collective_time)

    @cached_property
    def step_times(self) -> StepTimes:
        """Return step times without the profiling overhead; phases, modules and operators add up to them."""
        return step_times(self)

    @cached_property
    def collective_time(self) -> CollectiveTime | None:
        """Collectives in flight in the profiled steps after warm-up, and what waited for them; None without any."""
        return collective_time(self)

    def communication(self) -> pl.DataFrame:
        """Collectives of this process, a row a kind and place: calls, bytes, total and exposed ns, means a step."""
        time = self.collective_time
        return pl.DataFrame(schema=COLLECTIVE_SCHEMA) if time is None else time.kinds

    @cached_property
    def side_by_side(self) -> Ranks:
        """The parts of a distributed training with what can be compared between them."""
        return compare_ranks(self)

    @property
    def ranks(self) -> list[Run]:
        """Return this run and the parts of further processes, by rank; only itself where there are none."""
        return self.side_by_side.parts

    def rank_table(self) -> pl.DataFrame:
        """Step time, samples per second, communication and lateness of each part, a row a rank; ns a step."""
        return self.side_by_side.table

    def skew(self) -> pl.DataFrame:
        """Return how far apart the ranks ended each step and arrived at its collectives, ns, and who was last."""
        return self.side_by_side.skew

    @cached_per_run
    def modules(self) -> pl.DataFrame:
        """Time of each module, own and of its subtree, forward, backward and optimizer, ns a step."""
        return module_table(self)

    @cached_per_run
    def layers(self) -> pl.DataFrame:
        """Each layer with its time, energy, memory, FLOPs and share of the attainable, a step, longest first."""
        return layers(self)

    @cached_per_run
    def operators(self) -> pl.DataFrame:
        """Self time of each op, ns a step by phase."""
        return operator_table(self)

    def attained(self, by: str = "module") -> pl.DataFrame:
        """Share of what this device could do, of each "module" or "operator": measured and attainable ns a step."""
        return attained_shares(self, by)

    @cached_per_run
    def phases(self) -> pl.DataFrame:
        """Time of each phase, ns a step, and the unattributed time."""
        return phase_table(self)

    @cached_per_run
    def metrics(self) -> pl.DataFrame:
        """The metrics of the paper, a row each: metric, scope, value, unit, low, high, n, source, note."""
        return metrics(self)

    @cached_per_run
    def anatomy(self) -> pl.DataFrame:
        """Every op of the step that is nearest to the median."""
        return median_step_ops(self)

    @cached_per_run
    def dependencies(self) -> Dependencies:
        """Return which operator waits for which, the critical path, what could overlap, and idle time by cause."""
        return dependencies(self)

    @cached_per_run
    def overhead(self) -> pl.DataFrame:
        """Return the profiling overhead, columns as `metrics`."""
        return overhead(self)

    def memory(self, device: str | None = None) -> pl.DataFrame:
        """Live bytes after each allocation and free of the profiled steps: in all, not attributed, and by category."""
        return memory_over_time(self.memory_events, device)

    @property
    def allocations(self) -> pl.DataFrame:
        """Allocations and frees of the profiled steps; where none was profiled those of computed steps, if any."""
        return self.computed_memory_events if self.memory_events.is_empty() else self.memory_events

    def peak(self, device: str | None = None) -> Peak | None:
        """The instant with the most live bytes: op and module, categories, tensors; None: not known.

        `computed` where no step's allocations were profiled, and those of a step on tensors without data are known.
        """
        highest = peak(self.allocations, device)
        return None if highest is None else replace(highest, computed=self.memory_events.is_empty())

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
        """Return what is known of the board that this ran on."""
        return self.rails.board

    @property
    def core_clusters(self) -> dict[str, list[int]]:
        """Numbers of the cores of each cluster, such as Denver2 and Cortex-A57, or big and little."""
        return core_clusters(self.device, self.board)

    @property
    def simulated(self) -> str | None:
        """The simulated board with its settings, where the power of this run is no measurement of this machine."""
        stated = [str(self.meta[name]) for name in ("simulated", "simulated_settings") if self.meta.get(name)]
        return ",".join(stated) or None

    @property
    def board_computes(self) -> bool:
        """Return whether that board has processors of its own: its GPU and cores are then not this machine's."""
        return board_computes(self)

    @property
    def board_has_gpu(self) -> bool:
        """Return whether a GPU of that board was read: the training then counts as one on an accelerator."""
        return board_has_gpu(self)

    def energy_totals(self) -> pl.DataFrame:
        """Energy over the steps after warm-up, a row a component, total first; empty without measured power."""
        return self.energy_tables.totals

    def rail_energy(self) -> pl.DataFrame:
        """Energy over the steps after warm-up, a row a rail, with the rail that contains it."""
        return self.energy_tables.rails

    def step_energy(self) -> pl.DataFrame:
        """Energy of each step after warm-up by component, J; null where a gap or the sensor's own pace hides it."""
        return step_energy_table(self, self.rails)

    @cached_property
    def _op_timelines(self) -> RunTimelines:
        return RunTimelines(self, lambda: self.step_times)

    @cached_property
    def attributed_rails(self) -> list[RailFit]:
        """Each measured rail with the fit that hands its energy to the ops."""
        return fit_rails(self, self.rails, self._op_timelines, self.results)

    def energy(self, by: str = "module", method: str | None = None) -> pl.DataFrame:
        """Energy per step, J, by "module", "op", "kind", "phase" or "component", with 95 % CIs and verdicts.

        method: "fit" (ours), "nearest" (the sample nearest in time, as the 2019 paper), "overlap", or "model" for what
        a power model estimated; None: as this run was opened with. Parts and the unattributed energy add up to each
        rail's measured total.
        """
        chosen = method or self.attribution
        check_grouping(by, chosen)
        if chosen == "fit":
            return self.results.table(f"energy-{by}", lambda: self._energy(by, chosen))
        return self._energy(by, chosen)

    def device_energy(self, by: str = "module") -> pl.DataFrame:
        """Energy per step as `energy` has it, of the rail alone that stands for the whole device.

        It takes less time: the rails beside it are not fitted for it, nor this one where nothing of it could be called
        known, which then is a single row without a number.
        """
        if self.attribution != "fit" or "attributed_rails" in self.__dict__:
            return rows_of_main_rail(self.energy(by))
        check_grouping(by, "fit")
        return self.results.table(f"device-energy-{by}", lambda: self._device_energy(by))

    def _device_energy(self, by: str) -> pl.DataFrame:
        until = whole_device_rail(self, self.rails)
        rails = fit_rails(self, self.rails, self._op_timelines, self.results, until)
        return rows_of_main_rail(energy_by(rails, by, "fit", samples_per_step(self)))

    def _energy(self, by: str, method: str) -> pl.DataFrame:
        return energy_by(self.attributed_rails, by, method, samples_per_step(self))

    @cached_property
    def use_of_ops(self) -> list[UtilisationFit]:
        """Each channel of utilisation with the fit that hands it to the ops."""
        return fit_utilisation(self, self._op_timelines, self.results)

    def utilisation(self, by: str = "kind") -> pl.DataFrame:
        """Mean use of CPU (cores), GPU and memory controller (shares) by "kind", "op", "module" or "phase".

        By the machinery of `energy`, with 95 % CIs and verdicts; empty where nothing of it was sampled.
        """
        check_utilisation_grouping(by)
        return self.results.table(f"utilisation-{by}", lambda: utilisation_by(self.use_of_ops, by))

    def power_of_ops(self) -> pl.DataFrame:
        """Power of each measured rail over the step of `anatomy`, W: from op to op, as fitted."""
        ops = self.anatomy()
        step = -1 if ops.is_empty() else int(ops["step"][0])
        return self.results.table("power-of-ops", lambda: operator_power(self, self.attributed_rails, step))

    def energy_resolution(self) -> pl.DataFrame:
        """A row a rail: the shortest op that it can resolve, how much is within 10 %, how many more steps would do."""
        return self.results.table("resolution", lambda: resolution_table(self.attributed_rails))

    def power_timeline(self, t0_ns: int, t1_ns: int) -> pl.DataFrame:
        """Power of each rail over time: rail, component, t0_ns, t1_ns, watts (null in gaps), estimated."""
        return power_timeline(self.rails, t0_ns, t1_ns)

    def regularity(self) -> pl.DataFrame:
        """Spread from step to step, period by autocorrelation and changes of level of what was sampled."""
        return regularity(self)

    @cached_per_run
    def verdict(self) -> Verdict:
        """Return the bottleneck: what dominates the step, what it is bound by, and what to try next."""
        return verdict(self)

    def not_measured(self) -> list[NotMeasured]:
        """Return what this run cannot say, and why."""
        return list(not_measured(self))


def open_run(run: str | Path | Run, attribution: str = "fit") -> Run:
    """The run itself, or the one of a path, a name in `runs`, or "last"."""
    return run if isinstance(run, Run) else Run(run, attribution)
