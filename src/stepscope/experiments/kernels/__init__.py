"""Times of single kernels of a training step on this device, forward and backward, and how well they use it.

Here lies its request; study.py times and judges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stepscope.errors import UsageError
from stepscope.experiments.engine import DEVICE, THREADS, StudyRequest, check_device
from stepscope.request import option

if TYPE_CHECKING:
    from stepscope.experiments.engine.engine import Plan
    from stepscope.experiments.kernels.shapes import KernelAxes


OPS = ("conv", "depthwise", "linear", "lstm", "attention", "batch_norm", "optimizer")
_AXES = ("kernel", "channels", "sizes", "parameters")  # what a sweep has and a model has not


@dataclass(frozen=True)
class Kernels(StudyRequest):
    """Time forward, weight gradient and input gradient of single kernels, apart and together, against this device's
    ceilings.

    Finds where a useful FLOP takes least time, the cliffs, and whether a 5x5 and a 3x3 beat a 7x7. Interrupt it as you
    like: the same command with the same --out goes on where it stopped.
    """

    study: ClassVar[str] = "kernels"

    ops: tuple[str, ...] = option(
        OPS, "conv,depthwise,linear,lstm,attention,batch_norm,optimizer. Default: all.", choices=OPS, stated=True
    )
    of: str | None = option(None, "Only the shapes that a step of this workload has.")
    kernel: tuple[int, ...] = option(
        "1,3,5,...,11", "Sides of kernels. Default: 1,3,5,7,9,11.", least=1, quick=(1, 3, 5, 7)
    )
    batch: tuple[int, ...] = option(
        "1,2,4,...,128", "Batch sizes. Default: 1,2,4,...,128; one with --of.", least=1, quick=(1, 4, 16)
    )
    channels: tuple[int, ...] = option(
        "8,16,32,...,128", "Channels or features. Default: 8,16,...,128.", least=1, quick=(8, 32)
    )
    sizes: tuple[int, ...] = option(
        "8,16,32,64", "Sides of images, lengths of sequences: 8,16,32,64.", least=1, quick=(8, 16)
    )
    parameters: tuple[int, ...] = option(
        (10_000, 100_000, 1_000_000, 10_000_000), "Parameters of the optimizer's updates.",
        least=1, quick=(10_000, 100_000),
    )  # fmt: skip
    seconds: float = option(
        0.2, "Seconds for each part of a kernel: 0.2 (--quick: 0.03).", above=0, unit="s", example="0.1", quick=0.03
    )
    quick: bool = option(False, "Small sizes and short times: a minute.")
    import_: Path | None = option(None, "Profiler tables of the 2020 paper to compare with: a folder or file.")
    import_device: tuple[str, ...] = option(
        (), "The device of imported tables: 'Jetson TX2', or FOLDER='Jetson TX2' for each folder; may be given again.",
        separate=True, stated=True,
    )  # fmt: skip
    device: str = option("cpu", DEVICE)
    threads: int = option(None, THREADS)  # torch's own, once it is checked
    seed: int = option(0, "Seed of the order in which kernels are timed.")

    @property
    def subject(self) -> str:
        return self.of or ""

    @property
    def sweep(self) -> KernelAxes:
        """The axes along which kernels are timed."""
        from stepscope.experiments.kernels.shapes import KernelAxes

        return KernelAxes(self.kernel, self.batch, self.channels, self.sizes, self.parameters)

    def __post_init__(self) -> None:
        if self.of is not None:
            for axis in _AXES:
                if getattr(self, axis):
                    raise UsageError(
                        f"--of takes the shapes of a model, not --{axis}", "leave out the one or the other"
                    )
                object.__setattr__(self, axis, ())
            object.__setattr__(self, "batch", self.batch or ())
        super().__post_init__()
        if any(side % 2 == 0 for side in self.kernel):
            hint = "--kernel 1,3,5,7"
            raise UsageError("--kernel takes odd numbers: an even kernel changes the size of its image", hint)
        if self.of is not None and len(self.batch) > 1:
            raise UsageError(f"--of takes one batch size, not {len(self.batch)}", "for example --batch 8")
        if self.import_device and self.import_ is None:
            raise UsageError("--import-device names the device of imported tables", "add --import FOLDER")

    def checked(self) -> StudyRequest:
        import torch

        check_device(self.device)
        imported = None if self.import_ is None else self.import_.absolute()
        return replace(self, threads=self.threads or torch.get_num_threads(), import_=imported)

    def plan(self) -> Plan:
        from stepscope.experiments.kernels.study import kernel_plan

        return kernel_plan(self)
