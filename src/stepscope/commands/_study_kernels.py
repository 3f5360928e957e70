"""`stepscope study kernels`: how long single kernels take on this device, and how well they use it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.studies.kernels.shapes import Sweep
    from stepscope.studies.kernels.study import Asked


def kernels(
    ops: Annotated[
        str | None, typer.Option(help="conv,depthwise,linear,lstm,attention,batch_norm,optimizer. Unless said: all.")
    ] = None,
    of: Annotated[str | None, typer.Option(help="Only the shapes that a step of this workload has.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Sides of kernels: 1,3,5,7,9,11, unless said.")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes: 1,2,4,...,128, unless said; one with --of.")] = None,
    channels: Annotated[str | None, typer.Option(help="Channels or features: 8,16,...,128, unless said.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Sides of images, lengths of sequences: 8,16,32,64.")] = None,
    parameters: Annotated[str | None, typer.Option(help="Parameters of the optimizer's updates.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds for each part of a kernel: 0.2 (--quick: 0.03).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and short times: a minute.")] = False,
    import_: Annotated[
        Path | None,
        typer.Option("--import", help="Profiler tables of the 2020 paper to compare with: a folder or file."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads. Unless said: torch's own choice.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order in which kernels are timed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the study. Unless said: studies/<time>-kernels.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    """Time forward, weight gradient and input gradient of single kernels, apart and together, against this device's
    ceilings.

    Finds where a useful FLOP takes least time, the cliffs, and whether a 5x5 and a 3x3 beat a 7x7. Interrupt it as you
    like: the same command with the same --out goes on where it stopped.
    """
    from stepscope.commands._cells_shown import cells_shown, command_line, resumable
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.report.charts.study_kernels import charts
    from stepscope.studies.kernels.study import NAME
    from stepscope.studies.kernels.study import kernels as timed
    from stepscope.studies.study_folder import StudyFolder

    axes = {"kernels": kernel, "batches": batch, "channels": channels, "sizes": sizes, "parameters": parameters}
    asked = _asked(ops, of, axes, quick)
    asked = replace(
        asked, device=_device(device), seed=seed, threads=_threads(threads), imported=None if import_ is None else
        str(import_.absolute()), seconds=asked.seconds if seconds is None else _above_zero(seconds),
    )  # fmt: skip
    folder = study_out(out, NAME, of or "")
    command = command_line(out, folder)
    with resumable(command), cells_shown(quiet) as tell:
        findings = timed(folder, asked, tell=tell, command=command)
    concluded(StudyFolder(folder, NAME, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)


def _asked(ops: str | None, of: str | None, axes: dict[str, str | None], quick: bool) -> Asked:
    from stepscope.studies.kernels.shapes import OPS
    from stepscope.studies.kernels.study import Asked
    from stepscope.studies.suite.grid import numbers, words

    chosen = words("--ops", ops, OPS) or OPS
    seconds = 0.03 if quick else 0.2
    if of is None:
        return Asked(ops=chosen, sweep=_sweep(axes, quick), seconds=seconds, quick=quick)
    given = [name for name, text in axes.items() if text is not None and name != "batches"]
    if given:
        raise UsageError(f"--of takes the shapes of a model, not --{given[0]}", "leave out the one or the other")
    one = numbers("--batch", axes["batches"])
    if len(one) > 1:
        raise UsageError(f"--of takes one batch size, not {len(one)}", "for example --batch 8")
    return Asked(ops=chosen, of=of, batch=one[0] if one else None, seconds=seconds, quick=quick)


def _sweep(axes: dict[str, str | None], quick: bool) -> Sweep:
    from stepscope.studies.kernels.shapes import QUICK, Sweep
    from stepscope.studies.suite.grid import numbers

    options = {"kernels": "kernel", "batches": "batch"}
    values = {name: numbers(f"--{options.get(name, name)}", text) for name, text in axes.items()}
    if any(each % 2 == 0 for each in values["kernels"]):
        raise UsageError("--kernel takes odd numbers: an even kernel changes the size of its image", "--kernel 1,3,5,7")
    return replace(QUICK if quick else Sweep(), **{name: value for name, value in values.items() if value})


def _device(name: str) -> str:
    if name not in ("cpu", "cuda"):
        raise UnknownName("device", name, ("cpu", "cuda"))
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UsageError("--device cuda: torch sees no CUDA device here", "leave --device out")
    return name


def _threads(given: int | None) -> int:
    import torch

    if given is not None and given < 1:
        raise UsageError(f"--threads {given}: must be 1 or more", "for example --threads 1")
    return given or torch.get_num_threads()


def _above_zero(seconds: float) -> float:
    if not seconds > 0:
        raise UsageError(f"--seconds {seconds:g}: must be above 0", "for example --seconds 0.1")
    return seconds
