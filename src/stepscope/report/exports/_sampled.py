"""What was sampled as tracks of a viewer: a value over time with its unit, and the stretches in which none was read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.channel_timeline import channel_timeline
from stepscope.report.exports._excerpt import Excerpt
from stepscope.report.exports._lanes import Ints

_CORES = ("core_busy_time", "core_idle_time")
_GROUPS = {
    "Power": {"power", "energy", "voltage", "current", "charge", "stored_energy"},
    "Utilisation": {"utilisation", "process_cpu_time", *_CORES},
    "Memory": {"rss", "pss", "uss", "peak_rss", "memory_total", "memory_available", "memory_used", "swap_used"},
    "Temperature": {"temperature", "throttled"},
    "Frequency": {"frequency", "core_frequency"},
}
_UNITS = {"1": "share", "degC": "°C"}


@dataclass(frozen=True)
class Sampled:
    """One track: t_ns and values (n,) and unread (m, 2), ns; a value holds until the next or until it is unread."""

    group: str
    name: str
    unit: str
    t_ns: Ints
    values: np.ndarray[Any, np.dtype[np.float64]]
    unread: Ints


def sampled(excerpt: Excerpt) -> list[Sampled]:
    """A track for every channel: gauges as read, counters as their growth a second, cores as their utilisation."""
    found = [track for track in (*_cores(excerpt), *_channels(excerpt)) if len(track.t_ns) or len(track.unread)]
    order = [*_GROUPS, "Other"]
    return sorted(_named_apart(found), key=lambda track: order.index(track.group))


def _channels(excerpt: Excerpt) -> Iterator[Sampled]:
    for channel in excerpt.channels:
        quantity = str(channel.get("quantity"))
        if quantity in _CORES:
            continue
        samples = excerpt.samples(channel)
        if samples.is_empty():
            continue
        line = channel_timeline(channel, samples)
        what = f"{quantity.replace('_', ' ')}{' rate' if line.rate else ''}"
        estimated = " (estimated)" if channel.get("kind") == "estimate" else ""
        name = f"{what} {channel.get('rail') or channel.get('scope')}{estimated}"
        unit = _UNITS.get(line.unit, line.unit)
        yield Sampled(_group(quantity), name, unit, _whole(line.t_ns), line.values, _whole(line.gaps_ns))


def _cores(excerpt: Excerpt) -> Iterator[Sampled]:
    """Utilisation of each core, as the page has it, from the first to the last chosen step."""
    if excerpt.span_ns is None or excerpt.span_ns[0] >= excerpt.span_ns[1]:
        return
    for (scope,), frame in excerpt.run.core_timeline(*excerpt.span_ns).group_by(["scope"], maintain_order=True):
        read, unread = (frame.filter(pl.col("utilisation").is_null() == null) for null in (False, True))
        name = f"utilisation {str(scope).replace(':', ' ')}"
        t_ns, values = read["t0_ns"].to_numpy(), read["utilisation"].to_numpy()
        yield Sampled("Utilisation", name, "share", t_ns, values, _joined(unread.select("t0_ns", "t1_ns").to_numpy()))


def _joined(spans: Ints) -> Ints:
    """Spans that touch as one: (m, 2)."""
    if not len(spans):
        return spans
    new = np.concatenate([[True], spans[1:, 0] > spans[:-1, 1] + 1])
    return np.column_stack([spans[new, 0], spans[np.append(np.flatnonzero(new)[1:] - 1, len(spans) - 1), 1]])


def _named_apart(tracks: list[Sampled]) -> Iterator[Sampled]:
    """The same tracks; of several with one name, the later ones are numbered."""
    seen: dict[str, int] = {}
    for track in tracks:
        seen[track.name] = count = seen.get(track.name, 0) + 1
        name = track.name if count == 1 else f"{track.name} #{count}"
        yield Sampled(track.group, name, track.unit, track.t_ns, track.values, track.unread)


def _group(quantity: str) -> str:
    return next((group for group, quantities in _GROUPS.items() if quantity in quantities), "Other")


def _whole(t_ns: np.ndarray[Any, np.dtype[np.float64]]) -> Ints:
    return np.asarray(np.rint(t_ns).astype(np.int64))
