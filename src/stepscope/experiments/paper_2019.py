"""`stepscope study paper-2019`: the tables and figures of the 2019 paper for a device, beside what the paper printed.

Which of its sixteen models can be trained, and at which batch size at most, is counted on dry runs for the memory of a
board. Beyond the plan "dry" the networks are trained here, the twelve observations and the paper's rankings are judged,
and its figures 3 to 10 are drawn with its own points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.errors import UsageError
from stepscope.experiments.engine import DEFAULT_TIME_LIMIT_S, SIMULATE, TIME_LIMIT, StudyRequest
from stepscope.experiments.observations import QUICK_BATCHES, Observations
from stepscope.request import option

if TYPE_CHECKING:
    from stepscope.analysis.results import Findings, ResultTable, Value
    from stepscope.experiments.engine.engine import Plan, Point, Result


@dataclass(frozen=True)
class PaperModel:
    """A row of the paper's table of models, the workload that is it, and the memory that the paper printed.

    small: the form for pictures of 32 x 32 where the printed FLOPs are of another size. gigabytes: process or board,
    the paper does not say which, with a batch of 64.
    """

    name: str
    workload: str
    trained: bool
    small: str = ""
    gigabytes: float | None = None
    at_least: bool = False
    remark: str = ""


MODELS = (
    PaperModel("DenseNet40_12", "densenet40-12-c32", True, gigabytes=5.9, remark="of intermediate data alone"),
    PaperModel("ResNet50", "resnet50-224", True, "resnet50-c32", 5.8),
    PaperModel("SqueezeNet", "squeezenet-224", True, "squeezenet-c32", 5.7),
    PaperModel("VGG16", "vgg16-224", True, "vgg16-c32", 6.3),
    PaperModel("XceptionNet", "xception-299", True, "xception-c32"),
    PaperModel("InceptionV1", "inception-v1-narrow-c32", True),
    PaperModel("Char-CNN", "char-lstm-80", True, remark="an LSTM by its dominant layer"),
    PaperModel("DCGAN", "dcgan-32", True),
    PaperModel("Deep RL", "dqn-2013-84", True),
    PaperModel("AlexNet", "alexnet-224", True, "alexnet-c32"),
    PaperModel("VGG19", "vgg19-224", False, "vgg19-c32", 10.0, at_least=True),
    PaperModel("BERT", "bert-base-384", False),
    PaperModel("ResNet101", "resnet101-224", False, "resnet101-c32", 10.0, at_least=True),
    PaperModel("ResNet152", "resnet152-224", False, "resnet152-c32"),
    PaperModel("DenseNet100", "densenet100-12-c32", False, remark="some steps, then a segmentation fault"),
    PaperModel("seq2seq", "seq2seq-en-vi-50", False, remark="some steps, then a segmentation fault"),
)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGEST = 64  # batch size that the paper trained with
_SMALLEST = (1, 2)  # counted in any case: what fits at no batch size does not fit at one, or at two where one cannot be
PLANS = ("dry", "hour", "night", "week")
_LEAST_RUNS = 4  # that show a period where only one batch size has steps long enough: three of three may be chance
_HOUR = ("resnet50-c32", "squeezenet-c32", "char-lstm-80", "dqn-2013-84")
_NIGHT = (
    "densenet40-12-c32", "resnet50-c32", "squeezenet-c32", "inception-v1-narrow-c32", "dcgan-32", "char-lstm-80",
    "dqn-2013-84",
)  # fmt: skip
_WEEK = (*_NIGHT, "vgg16-c32", "xception-c32", "alexnet-c32")
_TASK = "stepscope.experiments.paper_2019:count_model"


@dataclass(frozen=True)
class Paper2019(StudyRequest):
    """Give the tables and figures of the 2019 paper for a device, beside what the paper printed.

    The plan "dry" trains nothing: of each of sixteen models it counts which batch sizes fit into the board's memory.
    The others train as well, judge the observations and rankings, and draw figures 3 to 10 with the paper's points.
    """

    study: ClassVar[str] = "paper-2019"

    plan_: str = option(
        "dry", "dry (minutes), hour, night or week: what is trained besides.", choices=PLANS, kind="plan"
    )
    board: str = option("jetson-tx2", "The board whose memory counts, by a part of its name.")
    memory: float | None = option(None, "Its memory, where several sizes are sold.", above=0, unit="B", example="8GB")
    small: bool = option(False, "The forms for pictures of 32 x 32, whatever FLOPs the paper printed.")
    batch: tuple[int, ...] = option(
        BATCHES, "Batch sizes that are counted. Default: 1,2,...,256.", least=1, stated=True
    )
    from_: tuple[Path, ...] = option(
        (), "Judge the runs of a sweep, or of any folder of runs, instead of training; may be given again.",
        separate=True, stated=True,
    )  # fmt: skip
    simulate: str | None = option(None, SIMULATE)
    device: str = option(None, "Train on cpu or cuda. Default: cuda where torch has it.", choices=("cpu", "cuda"))
    threads: int | None = option(
        None, "Threads. Default: on a CPU one core is left free.", least=1, most=1024, example="1"
    )  # fmt: skip
    day_workload: str = option(
        "densenet40-4-c32", "Network of the days: the paper's at a third of its width, or lenet.",
        choices=("densenet40-4-c32", "lenet"),
    )  # fmt: skip
    seed: int = option(0, "Seed of the order of runs and of the trainings.")
    time_limit: float = option(DEFAULT_TIME_LIMIT_S, TIME_LIMIT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.simulate is not None and self.observations_request is None:
            raise UsageError("--simulate belongs to a plan that measures", "add --plan hour, or leave it out")

    @property
    def trainings(self) -> tuple[str, ...]:
        return self.observations_request.trainings if self.observations_request else ()

    @property
    def observations_request(self) -> Observations | None:
        """Return what is trained and judged besides; None with the plan "dry" and no runs given."""
        shared: dict[str, Any] = {"device": self.device, "threads": self.threads, "seed": self.seed}
        shared |= {"simulate": self.simulate, "time_limit": self.time_limit, "day_workload": self.day_workload}
        if self.from_:
            return Observations(from_=self.from_, only=tuple(range(1, 12)), **shared)
        if self.plan_ == "hour":
            return Observations(
                workloads=_HOUR, batch=QUICK_BATCHES, repeats=_LEAST_RUNS, seconds=15.0, day_batches=(16,),
                **shared,
            )  # fmt: skip
        if self.plan_ == "dry":
            return None
        week = self.plan_ == "week"
        return Observations(workloads=_WEEK if week else _NIGHT, repeats=5 if week else 3, **shared)

    def checked(self) -> StudyRequest:
        from stepscope.analysis.memory.limits import limit_of_board

        limit_of_board(self.board, self.memory)
        observations = self.observations_request
        if observations is None:
            return self
        request = observations.checked()
        assert isinstance(request, Observations)
        return replace(self, device=request.device, threads=request.threads, from_=request.from_)

    def plan(self) -> Plan:
        from stepscope.experiments.engine.engine import Plan

        observations = self.observations_request
        measured = observations.checked().plan() if observations is not None else None
        points = [*self.points(), *(measured.points if measured else ())]

        def judge(results: Mapping[str, Result]) -> Findings:
            return paper_findings(self, results, measured.judge(results) if measured else None)

        return Plan(points, judge, time_limit_s=self.time_limit)

    def points(self) -> list[Point]:
        """Return a point a model: its dry runs."""
        from stepscope.experiments.engine.engine import Point

        batches = sorted({*_SMALLEST, *self.batch, LARGEST})
        shared = {"board": self.board, "memory": self.memory, "batches": batches}
        return [
            Point(f"fit-{name}", f"memory of {model.name} ({name})", _TASK, {"workload": name, **shared}, timed=False)
            for model in MODELS
            if (name := self.workload_of(model))
        ]

    def workload_of(self, model: PaperModel) -> str:
        """Return the workload that is counted for a model."""
        return model.small if self.small and model.small else model.workload


def count_model(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict of each batch size, the largest batches that surely and likely fit, and bytes at the largest.

    `verdicts` has null for a batch that the model cannot be trained with (batch statistics of one value).
    """
    from stepscope import workloads
    from stepscope.analysis.memory.limits import LIKELY_FITS, NO_FIT, limit_of_board
    from stepscope.footprint.jobs import workload_job
    from stepscope.footprint.prediction import device_measurements, platform_of
    from stepscope.footprint.result import LivePeak
    from stepscope.footprint.simulator import Simulator, live_peak
    from stepscope.record.dry.dry_run import DryRunStopped

    limit, board = limit_of_board(orders["board"], orders["memory"]), orders["board"]
    job = workload_job(workloads.find(orders["workload"]))
    simulator = Simulator(platform_of(board), device_measurements(board, "default", None), "default")
    verdicts: dict[str, str | None] = {}
    live: dict[int, LivePeak] = {}
    sure, likely = simulator.largest(job, limit, LARGEST, live)
    for batch in orders["batches"]:
        if batch not in (1, LARGEST) and (batch <= sure or NO_FIT in verdicts.values()):
            verdicts[str(batch)] = LIKELY_FITS if batch <= sure else NO_FIT  # memory does not shrink with the batch
            continue
        try:
            live[batch] = live.get(batch) or live_peak(simulator.run(job, batch).log)
        except DryRunStopped as stopped:
            if batch > 1:
                return {"status": "refused", "reason": f"fake tensors stopped at {stopped}"}
            verdicts[str(batch)] = None
        else:
            verdicts[str(batch)] = simulator.verdict(live[batch], limit, sure=False)
    peak = simulator.peak_of_process(live[LARGEST])
    result = {"verdicts": verdicts, "sure": sure, "likely": likely, "live": live[LARGEST].bytes}
    return {**result, "low": peak.low, "high": peak.high, "limit": limit.bytes, "of": limit.source}


def paper_findings(request: Paper2019, results: Mapping[str, Result], measured: Findings | None) -> Findings:
    """The findings: feasibility from the results of the dry runs, and what was judged from the runs."""
    import polars as pl

    from stepscope.analysis.memory.limits import VERDICTS, board_named, limit_of_board
    from stepscope.analysis.results import Findings, ResultTable

    limit = limit_of_board(request.board, request.memory)
    rows = [(model, results[f"fit-{request.workload_of(model)}"]) for model in MODELS]
    counted = [(model, result) for model, result in rows if result["status"] == "ok"]
    lost = [model for model, result in rows if result["status"] != "ok"]
    notes = [
        f"{model.name}: {result['status']}: {result['reason']}" for model, result in rows if result["status"] != "ok"
    ]
    batches = [str(batch) for batch in sorted({*request.batch, LARGEST})]
    short = dict(zip(VERDICTS, _SHORT, strict=True))
    by_batch = tuple(
        (model.name, *(short.get(result["verdicts"][batch]) for batch in batches)) for model, result in counted
    )
    tables = (
        _feasibility_table(request, counted, limit.bytes),
        ResultTable("batches", "Fits at batch size", ("model", *batches), by_batch, _BY_BATCH),
        _statement_table([*counted, *((model, _NOT_COUNTED) for model in lost)]),
    )
    cells = [
        {"model": model.name, "trained": model.trained, "batch": int(batch), "verdict": result["verdicts"][batch]}
        for model, result in counted
        for batch in batches
    ]
    notes += [f"{limit.source}: {limit.bytes / 1e9:.3g} GB beside its system", *_NOTES]
    frames = {"paper-feasibility": pl.DataFrame(cells, infer_schema_length=None)} if cells else {}
    board, gigabytes = board_named(request.board).title, (limit.device_bytes or limit.bytes) / 1e9
    answer = _answer(counted, f"{board} ({gigabytes:.3g} GB)")
    mine = Findings(
        f"The 2019 paper for {board}", answer, tables, device=f"{board}, its memory alone", notes=tuple(notes),
        frames=frames,
    )  # fmt: skip
    if measured is None:
        return mine
    return replace(
        measured,
        title=_TITLE,
        answer=f"{mine.answer} {measured.answer}",
        tables=(*mine.tables, *measured.tables),
        notes=(*mine.notes, *measured.notes),
        frames={**mine.frames, **measured.frames},
    )


_TITLE = "The 2019 paper on this device"
_NOT_COUNTED: Mapping[str, Any] = {"verdicts": {}}
_SHORT = ("yes", "likely", "close", "no")  # for nine columns of verdicts
_BY_BATCH = "A dash: the model cannot be trained with this batch (batch statistics of one value). close: cannot tell."
_NOTES = (
    "the paper trained with TensorFlow 1.13 on the GPU, whose allocator takes memory in large pieces; counted here is "
    "a training in PyTorch with the kernels of a CPU: what differs may be the framework's",
    "without a measurement of an empty training process on the board itself, a yes can be no more than likely "
    "(stepscope fit, run there)",
    "what is marked as the paper's was read in its text and tables",
)


def _agreement_with_paper(model: PaperModel, result: Mapping[str, Any]) -> str:
    verdict = result["verdicts"][str(LARGEST)]
    if model.trained:
        words = {"does not fit": f"differs: {_largest_likely_batch_text(result)}", "too close": "cannot tell"}
        return words.get(str(verdict), "as the paper")
    none = all(answer in (None, "does not fit") for answer in result["verdicts"].values())
    if none:
        return "as the paper"
    return f"differs: {_largest_likely_batch_text(result)}" if result["sure"] else "cannot tell"


def _largest_likely_batch_text(result: Mapping[str, Any]) -> str:
    """Return up to which batch size it likely fits: the whole interval of its process lies below the memory."""
    return f"likely up to batch {result['sure']}" if result["sure"] else "at no batch size, or too close to tell"


def _feasibility_table(
    request: Paper2019, counted: Sequence[tuple[PaperModel, Mapping[str, Any]]], limit: int
) -> ResultTable:
    from stepscope.analysis.results import ResultTable

    rows: list[tuple[Value, ...]] = []
    for model, result in counted:
        printed = None if model.gigabytes is None else f"{'above ' if model.at_least else ''}{model.gigabytes:g}"
        bytes_ = (result["live"] / 1e9, result["low"] / 1e9, result["high"] / 1e9)
        trained_as = "batch 1 to 64" if model.trained else model.remark or "not at all"
        verdict = result["verdicts"][str(LARGEST)]
        largest = (result["sure"] or None, result["likely"] or None)
        about = (model.name, request.workload_of(model), trained_as, verdict, _agreement_with_paper(model, result))
        rows.append((*about, *largest, *bytes_, printed))
    columns = (
        "model", "workload", "the paper trained", "counted at 64", "against the paper", "largest that likely fits",
        "largest, too close", "live GB at 64", "process GB, low", "process GB, high", "the paper's GB",
    )  # fmt: skip
    note = f"Memory of a training process for {limit / 1e9:.3g} GB. DenseNet40's 5.9 GB are of intermediate data alone."
    return ResultTable("feasibility", "Which models can be trained", columns, tuple(rows), note)


def _statement_table(counted: Sequence[tuple[PaperModel, Mapping[str, Any]]]) -> ResultTable:
    """The paper's statements on memory, each about all models of it, judged for each."""
    from stepscope.analysis.results import ResultTable

    trained = [(model, result) for model, result in counted if model.trained]
    crossed = [(model, result) for model, result in counted if not model.trained]
    above = [str(batch) for batch in (128, 256)]
    rows = [
        ("ten models train with a batch of 64", *_judge_fit_of_all_models(trained, [str(LARGEST)], fits=True)),
        ("six models cannot be trained", *_judge_fit_of_all_models(crossed, [], fits=False)),
        ("with 128 and 256 all models run out of memory", *_judge_fit_of_all_models(counted, above, fits=False)),
    ]
    columns = ("the paper says", "verdict", "because")
    return ResultTable("statements", "The paper's statements on memory", columns, tuple(rows), "Judged for each model.")


def _judge_fit_of_all_models(
    models: Sequence[tuple[PaperModel, Mapping[str, Any]]], batches: Sequence[str], fits: bool
) -> tuple[str, str]:
    """Return whether all (`fits` false: none) of these batch sizes, or of all counted ones, fit in each model."""
    against, open_ = [], []
    for model, result in models:
        verdicts = result["verdicts"]
        counted = [verdicts[batch] for batch in (batches or verdicts) if verdicts.get(batch) is not None]
        opposite, agreeing = ("does not fit", "fits") if fits else ("fits", "does not fit")
        if any(opposite in (verdict, verdict.removeprefix("likely ")) for verdict in counted):
            against.append(model.name)
        elif not counted or any(agreeing != verdict.removeprefix("likely ") for verdict in counted):
            open_.append(model.name)
    if against:
        return "does not hold", f"{'too large' if fits else 'likely to fit'}: {', '.join(against)}"
    if open_ or not models:
        return "cannot tell", f"too close, or not counted: {', '.join(open_) or 'all'}"
    return "holds", f"for each of {len(models)} models"


def _answer(counted: Sequence[tuple[PaperModel, Mapping[str, Any]]], board: str) -> str:
    trained = [_agreement_with_paper(model, result) for model, result in counted if model.trained]
    crossed = [_agreement_with_paper(model, result) for model, result in counted if not model.trained]
    differ = sum(comparison.startswith("differs") for comparison in trained)
    smaller, none = sum(comparison.startswith("differs") for comparison in crossed), crossed.count("as the paper")
    return (
        f"Of {len(trained)} models that the paper trained with a batch of {LARGEST}: "
        f"{trained.count('as the paper')} likely fit a {board}, {trained.count('cannot tell')} too close to tell, "
        f"{differ} too large. Of {len(crossed)} that it could not train: {smaller} likely fit at some batch size, "
        f"{none} at none."
    )
