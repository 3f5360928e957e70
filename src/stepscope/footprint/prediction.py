"""`stepscope.fit`: does a training or a script fit, at which batch at most, and which options would make it fit?"""

from __future__ import annotations

import contextlib
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stepscope.analysis.memory.limits import (
    ALLOCATORS,
    MARGIN,
    NO_FIT,
    RESIDENT,
    UNMEASURED,
    BaselineMemory,
    Limit,
    ProcessPeak,
    board_named,
    limit_of_board,
    limit_of_memory,
    limit_of_this_machine,
    worst_verdict,
)
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint import calibration
from stepscope.footprint import result as words
from stepscope.footprint.batch_line import SIZES, BatchLine, measure_batch
from stepscope.footprint.calibration import DeviceCalibration
from stepscope.footprint.cuda_settings import parse_settings
from stepscope.footprint.jobs import DEFAULT_BATCH, job_of
from stepscope.footprint.result import FitResult, LivePeak, Option
from stepscope.footprint.savings import is_worth_showing, ways
from stepscope.footprint.script import ScriptLog, dry_run_script
from stepscope.footprint.simulator import LoaderMemory, Simulator, largest_batch, live_peak, reserved_of, scene_peaks
from stepscope.record.dry import Job
from stepscope.record.dry.dry_run import (
    DryRun,
    DryRunStopped,
    NoSuchBatch,
    dry_run,
    model_of,
)
from stepscope.record.dry.platform import Platform, other_platform, this_platform
from stepscope.record.dry.probes import OpCallRecorder, probe_in_child
from stepscope.record.dry.storage_log import NEEDS_NUMBERS, StorageLog
from stepscope.record.dry.user_objects import clear_caches_of_fakes
from stepscope.record.dry.workspaces import Probed, Workspaces
from stepscope.units import bytes_, plural

BF16_BOARDS = frozenset({"jetson_agx_orin", "jetson_orin_nx", "jetson_orin_nano", "jetson_thor", "apple"})
_CORES = {
    "jetson_agx_orin": 12, "jetson_agx_xavier": 8, "jetson_nano": 4, "jetson_orin_nano": 6, "jetson_orin_nx": 8,
    "jetson_thor": 14, "jetson_tx1": 4, "jetson_tx2": 6, "jetson_tx2_nx": 6, "jetson_xavier_nx": 6,
    "raspberry_pi_4": 4, "raspberry_pi_5": 4,
}  # fmt: skip
_MOST_CORES = 14


def fit(
    model: nn.Module,
    optimizer: Optimizer | tuple[Optimizer, ...] | list[Optimizer],
    make_batch: Callable[[int], Any],
    loss: Any = None,
    *,
    batch: int = DEFAULT_BATCH,
    memory: float | str | None = None,
    board: str | None = None,
    allocator: str = "default",
    options: bool = True,
) -> FitResult:
    """Return whether this training fits into a memory, or a board, without running it.

    Nothing given is changed or moved.

    make_batch(n) gives a batch of n samples; loss(model, batch) a scalar (or a criterion of outputs and targets; None
    takes the model's own). With neither memory ("8GB") nor board ("tx2") the question is this machine, now.
    """
    job = job_of(model, optimizer, make_batch, loss)
    try:
        return predict_fit(question_of(job, batch, memory, board, allocator, options))
    finally:
        holders = clear_caches_of_fakes()
        if holders:
            text = f"stepscope: {', '.join(holders)} holds a tensor of the dry run, without numbers: make it anew"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def question_of(
    job: Job, batch: int, memory: float | str | None, board: str | None, allocator: str, options: bool
) -> JobQuestion:
    """The question as from Python: of this machine, now, where neither memory nor board is given."""
    return JobQuestion(
        job,
        batch,
        requested_limit(memory, board, here=memory is None and board is None),
        allocator,
        platform=platform_of(board),
        calibration=device_measurements(board, allocator, job),
        has_bf16=board_has_bf16(board),
        options=options,
    )


def platform_of(board: str | None, kind: str = "cpu", threads: int | None = None) -> Platform:
    """Return the kernels of this machine, or of a board by name; threads: of the board, else one a core."""
    if board is None:
        return this_platform(kind)
    return other_platform(
        kind, bool(board_has_bf16(board)), threads or _CORES.get(board_named(board).name, _MOST_CORES)
    )


def device_measurements(board: str | None, allocator: str, job: Job | None) -> DeviceCalibration:
    """Return what is known of this machine, its empty process measured where it was not yet; of a board nothing is."""
    if board is not None:
        return DeviceCalibration()
    measurements = calibration.load_calibration(calibration.calibration_path())
    of_layers = frozenset() if job is None else calibration.import_names_of_layers(model_of(job))
    of_home = calibration.imports_of_home(None if job is None else job.home)
    environment = calibration.measured_environment(allocator, of_layers | (of_home or frozenset()))
    return replace(measurements, environment=environment, imports_known=of_home is not None)


def requested_limit(memory: float | str | None, board: str | None, here: bool, account: str = RESIDENT) -> Limit | None:
    """The limit that was asked for; a board's memory may be said beside it. None where none was.

    account: who counts what may be taken of `memory`.
    """
    if here and board is not None:
        raise UsageError("--here and --board are two machines", "give one of them")
    if account != RESIDENT and (memory is None or board is not None):
        raise UsageError(f"--account {account} says who counts --memory", "give --memory, without --board")
    if board is not None:
        return limit_of_board(board, memory)
    if memory is not None:
        return limit_of_memory(memory, account)
    return limit_of_this_machine() if here else None


def board_has_bf16(board: str | None) -> bool | None:
    """Return whether a board trains in bf16; None where it is this machine, which can be asked."""
    if board is None:
        return None
    return board_named(board).name in BF16_BOARDS


@dataclass(frozen=True)
class JobQuestion:
    """A job with its batch, limit, allocator and platform, and how far to go."""

    job: Job
    batch: int
    limit: Limit | None = None
    allocator: str = "default"
    platform: Platform = field(default_factory=this_platform)
    calibration: DeviceCalibration = field(default_factory=DeviceCalibration)
    has_bf16: bool | None = None  # None: as this machine
    options: bool = True
    largest: bool = True


def predict_fit(question: JobQuestion) -> FitResult:
    """The answer by dry runs; where fake tensors stop, by two small batches for real, and it says so."""
    if question.batch < 1:
        raise UsageError(f"a batch of {question.batch} samples cannot be trained", "use --batch 1 or more")
    began = time.perf_counter()
    simulator = Simulator(question.platform, question.calibration, question.allocator)
    try:
        plain = simulator.run(question.job, question.batch)
        if simulator.workspaces.uncovered and question.platform == this_platform():
            simulator = _probe_uncovered_ops(question, simulator)
            plain = simulator.run(question.job, question.batch)
    except NoSuchBatch as stop:
        raise UsageError(f"{question.job.name}: {stop.reason}", "use a batch that its data have") from stop
    except DryRunStopped as stop:
        _refuse_batch_that_fails(question, simulator, stop)
        clear_caches_of_fakes()  # real tensors are trained now
        answer = _answer_by_real_steps(question, simulator, stop)
    else:
        answer = _answer_by_dry_run(question, simulator, plain)
    return replace(answer, seconds=time.perf_counter() - began)


def _refuse_batch_that_fails(question: JobQuestion, simulator: Simulator, stop: DryRunStopped) -> None:
    """Raise UsageError where a step of this batch fails by an error of its own, and one of another batch does not."""
    if stop.__cause__ is None or isinstance(stop.__cause__, NEEDS_NUMBERS):
        return
    place = f"layer '{stop.module}': " if stop.module else ""
    for other in (*SIZES, question.batch + 1):
        with contextlib.suppress(DryRunStopped):
            simulator.run(question.job, other)
            text = f"{question.job.name}: a batch of {question.batch} cannot be trained: {place}{stop.reason}"
            raise UsageError(text, f"use another one: a batch of {plural(other, 'sample')} runs") from stop


def _probe_uncovered_ops(question: JobQuestion, simulator: Simulator) -> Simulator:
    """Return the prediction with uncovered ops measured in a child process, once for this device.

    What is learnt is added to the calibration of the question that was asked: its plan is made with it too.
    """
    book = OpCallRecorder(simulator.workspaces, question.batch, set(simulator.workspaces.uncovered))
    dry_run(question.job, question.batch, book, steps=1)
    probed_sizes = _probe_and_save(book)
    question.calibration.probed.update(probed_sizes)
    return Simulator(question.platform, question.calibration, question.allocator)


def _probe_and_save(book: OpCallRecorder) -> dict[str, Probed]:
    """Run the ops of a book in a child process; what came of it is kept for this device."""
    probed_sizes = probe_in_child(book.calls)
    if probed_sizes:
        path = calibration.calibration_path()
        stored = calibration.load_calibration(path)
        with contextlib.suppress(StepscopeError):
            calibration.save_calibration(replace(stored, probed={**stored.probed, **probed_sizes}), path)
    return probed_sizes


def _probed_size_lookup(probed_sizes: Mapping[str, Probed]) -> Callable[[str, int], int | None]:
    return lambda call, samples: probed_sizes[call].bytes(samples) if call in probed_sizes else None


def _answer_by_dry_run(question: JobQuestion, simulator: Simulator, plain: DryRun) -> FitResult:
    job = question.job
    live = live_peak(plain.log)
    not_modelled = {name: count for name, count in simulator.workspaces.not_modelled.items() if count}
    answer = _make_result(
        simulator, live, question.limit, [*reasons_for_doubt(question), *_doubt_about_workspaces(not_modelled)]
    )
    slope = _bytes_per_sample(simulator, job, question.batch, live)
    sure, likely = (
        simulator.largest(job, question.limit, question.batch, {question.batch: live})
        if question.limit is not None and question.largest
        else (None, None)
    )
    options = tuple(_memory_options(question, simulator, plain, answer)) if question.options else ()
    return replace(
        answer, name=job.name, batch=question.batch, largest_batch=sure, likely_batch=likely, bytes_per_sample=slope,
        options=options, not_modelled=not_modelled, notes=tuple(_notes_of_dry_run(question, plain)), ops=plain.log.ops,
        events=plain.events(),
    )  # fmt: skip


def _make_result(simulator: Simulator, live: LivePeak, limit: Limit | None, unsure: Sequence[str]) -> FitResult:
    """The answer of a live peak: the process by the account that decides, and the verdict."""
    verdict, decides = None, limit
    if limit is not None:
        verdict, decides = worst_verdict(
            lambda account: simulator.peak_of_process(live, account=account), limit, not unsure
        )
    process = simulator.peak_of_process(live, account=RESIDENT if decides is None else decides.account)
    return FitResult(
        "", 0, words.DRY_RUN, live, process, simulator.allocator_name, simulator.workspaces.platform.name, decides,
        verdict, unsure=tuple(unsure),
    )  # fmt: skip


def reasons_for_doubt(question: JobQuestion) -> list[str]:
    """Reasons why a yes can be no more than likely."""
    on_gpu = question.platform.kind == "cuda"
    reasons = (
        [] if question.calibration.environment.measured or (on_gpu and question.platform.is_known) else [NOT_MEASURED]
    )
    if not question.calibration.imports_known:
        reasons.append("what this program imports is not in the empty process that was measured")
    if not question.platform.is_known:
        reasons.append("the kernels of that processor were not measured")
    if on_gpu:
        reasons.append("what CUDA's kernels and context take was compared with one GPU alone, an H100")
    return reasons


def _doubt_about_workspaces(ops: Iterable[str]) -> list[str]:
    names = ", ".join(sorted(ops))
    return [f"workspaces are not known of {names}"] if names else []


NOT_MEASURED = "the empty process was not measured where this will run: run fit there"


def _answer_by_real_steps(question: JobQuestion, simulator: Simulator, stop: DryRunStopped) -> FitResult:
    line = measure_batch(question.job, question.batch, simulator.reserve)
    live = line.at(question.batch)
    itself = question.batch in (line.small[0], line.large[0])
    reason = "kernels' workspaces are not in it" if itself else "it is extrapolated from small batches"
    answer = _make_result(simulator, live, question.limit, [*reasons_for_doubt(question), reason])
    notes = ("kernels' workspaces are not in it", "no options: they are simulated by dry runs")
    return replace(
        answer, name=question.job.name, batch=question.batch,
        method=words.ITS_BATCH if itself else words.SMALL_BATCHES,
        largest_batch=None if question.limit is None else _largest_batch_on_line(line, simulator, question.limit),
        bytes_per_sample=round(line.bytes_per_sample), stopped=str(stop), notes=notes,
    )  # fmt: skip


def _largest_batch_on_line(line: BatchLine, simulator: Simulator, limit: Limit) -> int:
    def of(single: Limit) -> int:
        def peak(batch: int) -> int:
            return simulator.peak_of_process(line.at(batch), account=single.account).high

        return largest_batch(peak, single.bytes * (1 - MARGIN), line.large[0])

    return min(of(single) for single in limit.all)


def _memory_options(question: JobQuestion, simulator: Simulator, plain: DryRun, as_it_is: FitResult) -> list[Option]:
    live = as_it_is.live
    options = [
        _allocator_option(simulator, as_it_is, question.limit, name)
        for name in ALLOCATORS
        if name != simulator.allocator.name and not simulator.on_gpu
    ]
    if simulator.on_gpu and _EXPANDABLE not in question.allocator:
        options.append(_expandable_option(question, plain, as_it_is))
    has_bf16 = question.platform.native_bf16 if question.has_bf16 is None else question.has_bf16
    for way in ways(question.job, question.batch, plain, has_bf16):
        try:
            run = simulator.run(way.job, way.batch, way.change)
        except DryRunStopped:
            continue  # this model cannot be changed so: an activation in place that backward needs, for example
        changed, compute = live_peak(run.log), run.flops / plain.flops if plain.flops else 1.0
        process = partial(simulator.peak_of_process, changed, None, live)
        option = _changed_memory_option(way.name, changed, process, as_it_is, question.limit, (way.price, compute))
        if is_worth_showing(as_it_is.process.middle, option.process.middle):
            options.append(option)
    return sorted((option for option in options if option.gain > 0), key=lambda option: -option.gain)


def _allocator_option(simulator: Simulator, as_it_is: FitResult, limit: Limit | None, name: str) -> Option:
    low, high = ALLOCATORS[name].time
    price = f"CPU time x {low:.2g} to {high:.2g}; {ALLOCATORS[name].how}"
    process = partial(_process_under_allocator, simulator, as_it_is.live, name)
    return _changed_memory_option(f"allocator: {name}", as_it_is.live, process, as_it_is, limit, (price, 1.0))


_EXPANDABLE = "expandable_segments:True"


def _expandable_option(question: JobQuestion, plain: DryRun, as_it_is: FitResult) -> Option:
    """Return the option of segments that grow (expandable_segments), for the same run."""
    text = _EXPANDABLE if question.allocator == "default" else f"{question.allocator},{_EXPANDABLE}"
    simulator = Simulator(question.platform, question.calibration, text)
    plain.log.reserve = partial(reserved_of, settings=parse_settings(text))
    grown = live_peak(plain.log)
    process, price = (
        partial(_process_under_allocator, simulator, grown, "default"),
        (f"PYTORCH_CUDA_ALLOC_CONF={text}", 1.0),
    )
    return _changed_memory_option(f"allocator: {_EXPANDABLE}", grown, process, as_it_is, question.limit, price)


def _process_under_allocator(simulator: Simulator, live: LivePeak, allocator: str, account: str) -> ProcessPeak:
    return simulator.peak_of_process(live, ALLOCATORS[allocator], account=account)


def _changed_memory_option(
    name: str, live: LivePeak, process: Callable[[str], ProcessPeak], as_it_is: FitResult, limit: Limit | None,
    costs: tuple[str, float],
) -> Option:  # fmt: skip
    """Return an option beside the answer as it is, by the account that decides there; costs: in words, and FLOPs."""
    peak = process(RESIDENT if as_it_is.limit is None else as_it_is.limit.account)
    verdict = None if limit is None else worst_verdict(process, limit, not as_it_is.unsure)[0]
    before = as_it_is.process.middle
    gain = before - peak.middle
    return Option(name, live.bytes, peak, verdict, gain, gain / before, *costs)


def _bytes_per_sample(simulator: Simulator, job: Job, batch: int, live: LivePeak) -> int | None:
    """Live bytes that one more sample takes, near this batch."""
    more = max(batch + 1, round(batch * 1.25))
    try:
        return round((live_peak(simulator.run(job, more).log).bytes - live.bytes) / (more - batch))
    except DryRunStopped:
        return None


_LENGTH_MADE_UP = "the largest of whole numbers in the data is asked for, and made up: sizes that follow from it"


def _note_of_made_up_values(looks: int) -> str:
    often = plural(looks, "time")
    return f"the loop reads values of tensors ({often}, as loss.item() does): a dry run has none and made them up"


def _notes_of_dry_run(question: JobQuestion, plain: DryRun) -> list[str]:
    notes = []
    if plain.log.value_reads:
        notes.append(_note_of_made_up_values(plain.log.value_reads))
    parameters = sum(s.bytes for s in plain.log.storages if s.category == "parameter")
    limit = question.limit
    if limit is not None and parameters > limit.bytes:
        notes.append("the parameters alone are larger than the limit: no batch can fit")
    if question.platform.kind == "cuda":
        where = "of the GPU" if question.platform.is_known else "of the board: GPU and host share it"
        notes.append(
            f"memory {where}; the caching allocator is simulated on the step's requests; workspaces of cuDNN and cuBLAS"
            " and the CUDA context are intervals; a data set on the GPU is not in it"
        )
    return notes


def _shared_memory_warning(loading: LoaderMemory) -> list[str]:
    """Say where batches of a loader's workers are near what there is of shared memory, as in a container."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return []
    most = loading.batches[1]
    if most <= free * (1 - MARGIN):
        return []
    return [f"batches of a loader's workers take up to {bytes_(most)} of /dev/shm, which has {bytes_(free)} left"]


_MAPPED = 5_000_000  # B of mapped files that are worth a word


def _note_of_mapped_files(loading: LoaderMemory, answer: FitResult) -> list[str]:
    """Say where pages of files come on top of what is resident; address space has them, and nobody else is charged."""
    by = RESIDENT if answer.limit is None else answer.limit.account
    if by != RESIDENT or loading.mapped[1] < _MAPPED:
        return []
    most = bytes_(loading.mapped[1])
    return [f"it maps files (np.memmap): up to {most} of their pages come on top, and are dropped before a kill"]


_ON_A_GPU = "it trains on a GPU: what lies there counts as RAM, and nothing is said of the GPU's own memory"


def predict_script_fit(
    target: str,
    arguments: Sequence[str],
    limit: Limit | None,
    allocator: str = "default",
    environment: Callable[[Iterable[str]], BaselineMemory] | None = None,
    platform: Platform | None = None,
    module: bool = False,
) -> FitResult:
    """Predict from the whole program, as far as it can be followed; options are those that leave the script unchanged.

    environment: of a process that imports these modules; None: it will run on another machine, with this platform.
    module: the target is one, as with `python -m`.
    """
    platform = platform or (other_platform() if environment is None else this_platform())
    workspaces = Workspaces(platform, calibration.load_calibration(calibration.calibration_path()).probed)
    book = OpCallRecorder(workspaces, None, workspaces.uncovered)
    watched = dry_run_script(target, arguments, book, module)
    logs = [watched.log] if watched.later is None else [watched.log, watched.later]
    if environment is not None and book.calls:
        size_of = _probed_size_lookup(_probe_and_save(book))
        for log in logs:
            log.set_probed_sizes(size_of)
    log, live, reached = _log_with_higher_peak(logs)
    stored = (
        DeviceCalibration() if environment is None else calibration.load_calibration(calibration.calibration_path())
    )
    measured = UNMEASURED if environment is None else environment(watched.imports)
    simulator = Simulator(platform, replace(stored, environment=measured), allocator)
    simulator.loading, simulator.allocator = watched.loading, simulator.allocator.for_script()
    not_modelled = {name: count for name, count in workspaces.not_modelled.items() if count}
    unsure = [
        *([] if simulator.measured else [NOT_MEASURED]),
        *(f"not followed: {call}" for call in watched.missed),
        *(f"followed once, not seen to be reached: {side}" for side in watched.forced if reached),
        *([] if environment is None else _shared_memory_warning(watched.loading)),
        *([_LENGTH_MADE_UP] if any(log.length_requests for log in logs) else []),
        *([_ON_A_GPU] if any(storage.device.startswith("cuda") for storage in log.storages) else []),
        *_doubt_about_workspaces(not_modelled),
    ]
    answer = _make_result(simulator, live, limit, unsure)
    others = [name for name in ALLOCATORS if name != simulator.allocator.name]
    options = [_allocator_option(simulator, answer, limit, name) for name in others]
    notes = _notes_of_script(watched, log, answer)
    if watched.rest_unknown:
        verdict = answer.verdict if answer.verdict in (None, NO_FIT) else words.CANNOT_TELL
        answer, options = replace(answer, at_least=True, verdict=verdict), []
    return replace(
        answer, name=target if module else Path(target).stem,
        method=words.DRY_RUN if watched.stopped is None else words.OWN_BATCH,
        options=tuple(option for option in options if option.gain > 0), stopped=watched.stopped,
        not_modelled=not_modelled, notes=tuple(notes), ops=log.ops,
        seconds=watched.seconds, scenes=scene_peaks(log), events=log.frame(), simulator=simulator,
    )  # fmt: skip


def _notes_of_script(watched: ScriptLog, log: StorageLog, answer: FitResult) -> list[str]:
    notes = ["the batch is the script's own: for the largest batch and more ways, give module:function"]
    notes += _note_of_mapped_files(watched.loading, answer)
    if log.value_reads:
        notes.append(_note_of_made_up_values(log.value_reads))
    if watched.presumed:
        where = ", ".join(watched.presumed)
        notes.append(f"taken to hold, since it fails with rounds omitted or values made up: the assertion at {where}")
    return notes


_MORE = 1.01  # times the most: what omitted rounds take besides is worth a word


def _log_with_higher_peak(logs: Sequence[StorageLog]) -> tuple[StorageLog, LivePeak, bool]:
    """Return the log of a script, or of its other pass where that takes more: then the peak may lie between the two."""
    peaks = [live_peak(log) for log in logs]
    plain, later = peaks[0], peaks[-1]
    if later.high <= plain.high * _MORE:
        return logs[0], plain, False
    return logs[-1], replace(later, low=min(plain.low, later.low), least=min(plain.least, later.least)), True
