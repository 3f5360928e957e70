"""An experiment in its folder: begun there or gone on with, and its findings stored."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.analysis.results import Findings
from stepscope.experiments.energy_resolution import parse_metering
from stepscope.experiments.engine.engine import device_name, measured_on, versions
from stepscope.experiments.engine.folder import StudyFolder
from stepscope.experiments.engine.sweep_points import training_file_digests
from stepscope.experiments.tune import TuneRequest
from stepscope.experiments.tune.changes import Change
from stepscope.experiments.tune.device_power import DevicePower
from stepscope.experiments.tune.device_settings import DeviceSettings
from stepscope.experiments.tune.experiment import Tuning
from stepscope.experiments.tune.judge import judge
from stepscope.experiments.tune.pair_statistics import ExperimentStore, TunableTraining, TuneRules
from stepscope.experiments.tune.process import RestartingTraining
from stepscope.privacy import redacted_texts

ShowProgress = Callable[[str, float], None]
_TITLES = {"time": "What makes {} faster", "energy": "What saves energy in {}", "memory": "Changes to {}"}


def tune_in_folder(request: TuneRequest, folder: Path, show_progress: ShowProgress) -> tuple[Findings, Tuning]:
    """Tune a workload, script or function of the user's, in processes of their own."""
    orders, count = request.orders(), itertools.count()

    def open_training(changes: Sequence[Change], facts: Mapping[str, Any]) -> TunableTraining:
        environment = {name: value for change in changes for name, value in change.environment.items()}
        log = folder / "runs" / f"{next(count)}.txt"
        return RestartingTraining(
            {**orders, "facts": dict(facts)}, log, environment, [change.name for change in changes]
        )

    sources = training_file_digests(request.target, request.module)
    return measure_changes(request, open_training, folder, show_progress, apart=True, sources=sources)


def measure_changes(
    request: TuneRequest,
    open_training: Callable[[Sequence[Change], Mapping[str, Any]], TunableTraining],
    folder: Path,
    show_progress: ShowProgress,
    *,
    apart: bool,
    sources: Mapping[str, str] | None = None,
) -> tuple[Findings, Tuning]:
    """Make the experiment, with the power of the device and its settings where they are asked for."""
    settings = {name: value for name, value in request.to_dict().items() if name != "minutes"}
    study_folder = StudyFolder(folder, "tune", settings, sources, measured_on())
    rules = TuneRules(60 * request.minutes, request.for_, request.only, request.not_)
    with (
        study_folder.locked(),
        _device_power(request, folder) as power,
        DeviceSettings(os.environ.get("STEPSCOPE_ROOT"), allowed=request.apply_power) as device,
    ):
        store = ExperimentStore(study_folder.store_result, study_folder.results(), show_progress)
        tuning = Tuning(open_training, rules, store, apart=apart, power=power, device=device)
        tuning.run()
    gpu = tuning.facts.get("gpu")
    findings = judge(tuning, _TITLES[request.for_].format(request.subject))
    findings = replace(findings, study="tune", device=f"{gpu} (cuda)" if gpu else "")
    return store_findings(findings, request, study_folder, folder), tuning


@contextmanager
def _device_power(request: TuneRequest, folder: Path) -> Iterator[DevicePower | None]:
    """The power of the device, where energy is to improve: read from the beginning to the end of the experiment."""
    if request.for_ != "energy":
        yield None
        return
    metering = parse_metering(request.plug, request.meter_command, request.power_model)
    power = DevicePower(folder / "power", metering, os.environ.get("STEPSCOPE_ROOT"))
    try:
        power.refuse_short(60 * request.minutes)
        yield power
    finally:
        power.close()


def store_findings(findings: Findings, request: TuneRequest, study_folder: StudyFolder, folder: Path) -> Findings:
    """Return the findings with what they are of, once they are stored.

    Of a workload that is its batch size as well, given or its own: what was measured holds for no other.
    """
    from stepscope.workloads import shipped_counts

    if not (request.of_a_script or request.of_a_function) and request.batch is None:
        about = shipped_counts().get("rows", {}).get(request.target, {})
        request = replace(request, batch=about.get("default_batch"))
    findings = replace(
        findings,
        settings=redacted_texts(request.to_dict()),
        device=findings.device or device_name(),
        versions=versions(),
        command=request.command_line("stepscope", "tune", out=folder),
    )
    study_folder.store_findings(findings)
    return findings
