"""`stepscope study paper-p744`: what the 2020 class project on low-power training measured, on this device.

"Performance Analysis of Machine Learning Model Training on Low Power Devices" (S. Agarwal, D. Paulsen, D. Hancock;
github.com/dereklh4/project_744) studies where the memory of training goes, which convolutions a device likes, and what
training only a part of a network saves. Here lies the request; study.py counts the heap and judges the statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.errors import UsageError
from stepscope.experiments.breakdown import Breakdown
from stepscope.experiments.engine import (
    DATA,
    DEVICE,
    SIMULATE,
    THREADS,
    TIME_LIMIT,
    StudyRequest,
    check_device,
    pinned_data,
)
from stepscope.experiments.kernels import Kernels
from stepscope.experiments.partial import PartialTraining
from stepscope.request import option

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan, Point

PLANS = ("dry", "hour", "night")
MOBILENET, RESNET, LENET = "mobilenet-v1", "resnet18", "lenet"
_TASK = "stepscope.experiments.paper_p744.study:count_heap"
# Sizes of its convolutions: 32 channels in and out, images of 256 x 256; batches of 4 (inference) and 32 (training).
_CONVOLUTIONS: Mapping[str, Any] = {"ops": ("conv",), "kernel": (1, 3, 5, 7, 9, 11), "channels": (32,), "sizes": (256,)}
_LONG_TRAINING_S = 6 * 3600.0
_BATCHES = {"hour": (1, 4, 32), "night": (1, 2, 4, 8, 16, 32)}


@dataclass(frozen=True)
class PaperP744(StudyRequest):
    """Give the tables and figures of the 2020 project P744 on low-power training for this device, beside its numbers.

    The plan "dry" trains nothing: it counts the heap of LeNet, ResNet18 and MobileNetV1 by call site and by holder. The
    others time operators and convolutions and train only parts of networks, and judge each statement of the project.
    """

    study: ClassVar[str] = "paper-p744"

    plan_: str = option("dry", "dry (a minute), hour or night: what is trained besides.", choices=PLANS, kind="plan")
    batch: int = option(32, "Batch size of the heap.", least=1, example="16")
    small: bool = option(False, "Networks for pictures of 32 x 32 in the heap, instead of 224 x 224.")
    data: str | None = option(None, f"Of ResNet18's training in parts. {DATA.help}")
    import_: Path | None = option(None, "The project's own profiler tables, to compare with: a folder or file.")
    import_device: tuple[str, ...] = option(
        (), "Their device: 'Jetson TX2', or FOLDER='Jetson TX2' for each folder; may be given again.",
        separate=True, stated=True,
    )  # fmt: skip
    simulate: str | None = option(None, SIMULATE)
    device: str = option("cpu", DEVICE)
    threads: int | None = option(None, THREADS)
    seeds: int = option(5, "Trainings of each way of training a part.", least=1, most=100)
    seed: int = option(0, "Seed of the order of runs and of the trainings.")
    seconds: float = option(0.2, "Seconds for each part of a convolution.", above=0, unit="s", example="0.1")
    time_limit: float | None = option(
        None, TIME_LIMIT, help="A training that lasts longer is ended. Default: 1h; of ResNet18 in parts 6h."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plan_ == "dry":
            for name, value in (("import", self.import_), ("data", self.data)):
                if value is not None:
                    raise UsageError(f"--{name} belongs to a plan that measures", "add --plan hour, or leave it out")

    @property
    def networks(self) -> dict[str, str]:
        """The workload of each network whose heap is counted, by the network's name."""
        size = "c32" if self.small else "224"
        return {LENET: "lenet", RESNET: f"resnet18-{size}", MOBILENET: f"mobilenet-v1-{size}"}

    @property
    def breakdown_request(self) -> Breakdown:
        """Figure 1: the time of operators of the two networks."""
        return Breakdown(
            models=("mobilenet-v1-c32", "resnet18-c32"), repeats=3, threads=self.threads, device=self.device,
            simulate=self.simulate, seed=self.seed, time_limit=self.time_limit,
        )  # fmt: skip

    @property
    def kernels_request(self) -> Kernels:
        """Figures 7 to 9: convolutions by the side of their kernel and by batch."""
        shared: dict[str, Any] = {"device": self.device, "threads": self.threads, "seed": self.seed}
        brought: dict[str, Any] = {"import_": self.import_, "import_device": self.import_device}
        return Kernels(**_CONVOLUTIONS, batch=_BATCHES[self.plan_], seconds=self.seconds, **brought, **shared)

    @property
    def partial_requests(self) -> dict[str, PartialTraining]:
        """Figures 10 to 12 by name: LeNet with the project's settings, transfer, and with the plan "night" ResNet18."""
        shared: dict[str, Any] = {"threads": self.threads, "device": self.device}
        shared |= {"simulate": self.simulate, "seeds": self.seeds, "time_limit": self.time_limit}
        requests = {
            "figure-10": PartialTraining(preset="second-paper", **shared),
            "figure-12": PartialTraining(
                pretrained=True, data="mnist-5k", ways=("all", "filters", "layers", "last"), fractions=(0.2, 0.6),
                optimizer="sgd", lr=0.01, batch=40, **shared,
            ),
        }  # fmt: skip
        if self.plan_ == "night":
            requests["figure-11"] = PartialTraining(
                workload="resnet18-c32", ways=("all", "filters", "cumulative", "layers"), fractions=(0.2, 0.4),
                data=self.data, **{**shared, "time_limit": self.time_limit or _LONG_TRAINING_S},
            )  # fmt: skip
        return requests

    def checked(self) -> StudyRequest:
        check_device(self.device)
        if self.plan_ == "dry":
            return self
        for part in (self.breakdown_request, self.kernels_request, *self.partial_requests.values()):
            part.checked()
        data = pinned_data("resnet18-c32", self.data) if self.plan_ == "night" else self.data
        return replace(self, data=data, import_=None if self.import_ is None else self.import_.absolute())

    def plan(self) -> Plan:
        from stepscope.experiments.engine.engine import Plan, joined_plan
        from stepscope.experiments.paper_p744.study import heap_findings, project_findings

        parts = {"heap": Plan(self.points(), lambda results: heap_findings(self, results))}
        if self.plan_ != "dry":
            studies = {
                "figure-1": self.breakdown_request,
                "figures-7-to-9": self.kernels_request,
                **self.partial_requests,
            }
            parts |= {name: request.checked().plan() for name, request in studies.items()}
        return joined_plan(parts, lambda findings: project_findings(self, findings))

    def points(self) -> list[Point]:
        """Return a point for each network: its dry runs."""
        from stepscope.experiments.engine.engine import Point

        return [
            Point(network, f"heap of {workload}, on dry runs", _TASK, orders, timed=False)
            for network, workload in self.networks.items()
            for orders in [{"workload": workload, "batch": self.batch}]
        ]
