"""The lines of the text report on who holds memory at the peak of a step."""

from __future__ import annotations

from rich.console import RenderableType

from stepscope.analysis.memory_events import Peak
from stepscope.report.text_lines import labelled
from stepscope.units import bytes_, percent

_MOST = 3
_SMALL = 0.005  # of the peak: categories below it are not worth a word
NAMES = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "input": "input",
    "saved": "feature maps saved for backward",
    "temporary": "temporaries",
    "workspace": "kernel workspace",
    "other": "other tensors",
}


def held(peak: Peak | None, reserved: dict[str, int]) -> list[RenderableType]:
    """Live tensors at the peak: how much, where, of what, and the largest; what the allocator holds beside them."""
    if peak is None:
        return []
    lines = [
        f"{bytes_(peak.bytes)} of live tensors at the peak{_place(peak)}",
        ", ".join(_category(row) for row in peak.categories.iter_rows() if row[2] >= _SMALL),
        "largest: " + ", ".join(_tensor(row) for row in peak.tensors.head(_MOST).iter_rows(named=True)),
    ]
    if peak.device in reserved:
        cpu = peak.device == "cpu"
        who = "malloc held at least {}, blocks of Python and torch included" if cpu else "the allocator held {}"
        lines.append(who.format(bytes_(reserved[peak.device])))
    if peak.residual_bytes:
        lines.append(f"{percent(peak.residual_share, 2)} of it could not be attributed")
    return [labelled("held", *lines)]


def place(op: str | None, module: str | None) -> str:
    """Where something was allocated: the op, and the layer that it ran for."""
    layer = "" if module is None else f" of {module or 'the model itself'}"
    return f"{op or 'something'}{layer}"


def _place(peak: Peak) -> str:
    phase = f", in {peak.phase}" if peak.phase and peak.phase != "other" else ""
    return f"{phase}: {place(peak.op, peak.module)} reached it" if peak.op else ""


def _category(row: tuple[str, int, float]) -> str:
    name, size, share = row
    return f"{NAMES[name]} {bytes_(size)} ({percent(share, 0)})"


def _tensor(row: dict[str, object]) -> str:
    shape = f" {row['shape']}" if row["shape"] else ""
    layer = f" of {row['module'] or 'the model itself'}" if row["module"] is not None else ""
    return f"{row['category']}{shape}{layer} {bytes_(float(str(row['bytes'])))}"
