"""Prometheus: the figures of a run as a text file, and live gauges of a running one as a file or on loopback."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable, UsageError
from stepscope.integrations._library_hooks import import_library
from stepscope.integrations._run_content import logged_values

if TYPE_CHECKING:
    from stepscope.analysis.run import Run
    from stepscope.report.live.run_state import Now, RunWatcher
    from stepscope.report.view.access import HttpAnswer

TITLE = "Prometheus text file"
EXTRA = "prometheus"
LOOPBACK = "127.0.0.1"
LOOK_EVERY_S = 5.0
_ESTIMATED = " (estimated)"  # as the live view marks it
Sample = tuple[str, str, dict[str, str], float]  # name, help, labels, value


def log_run(run: Run, out: str | Path | None = None) -> str:
    """Write the figures of a run as a text file, replaced as a whole, and return its path.

    out: a file whose name ends in ".prom", as the textfile collector of node_exporter reads them; default
    `stepscope.prom` in the run folder. Bounds of 95 % are gauges with `_low` and `_high`.
    """
    target = Path(out) if out is not None else run.path / "stepscope.prom"
    _write(_run_samples(run), target)
    return str(target)


@contextlib.contextmanager
def live_file(folder: Path, target: Path, every_s: float = LOOK_EVERY_S) -> Iterator[None]:
    """Keep a text file of live gauges up to date while the block lasts; the last state stays in it."""
    from stepscope.report.live.run_state import RunWatcher

    end = threading.Event()
    with contextlib.closing(RunWatcher(folder)) as follows:
        # What cannot be written is refused here, and not in the thread.
        _write(_live_samples(follows.read_state()), target)

        def keep() -> None:
            while not end.wait(every_s):
                with contextlib.suppress(OutputNotWritable):  # the disk may have room again the next time
                    _write(_live_samples(follows.read_state()), target)

        thread = threading.Thread(target=keep, name="stepscope-prometheus", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
            _write(_live_samples(follows.read_state()), target)


@contextlib.contextmanager
def live_server(folder: Path, port: int) -> Iterator[int]:
    """Serve live gauges at http://127.0.0.1:PORT/metrics while the block lasts; gives the port.

    Port 0 is any that is free. The run folder is looked at when somebody asks: nobody asks, nothing is read.
    """
    from stepscope.report.live.run_state import RunWatcher
    from stepscope.report.view.server import BoundedServer

    site = _Gauges(RunWatcher(folder))
    try:
        server = BoundedServer(site, LOOPBACK, port)
    except (OSError, OverflowError) as error:
        site.close()
        raise UsageError(
            f"port {port} of {LOOPBACK} cannot be used: {error}", "choose another, or 0 for any"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="stepscope-prometheus", daemon=True)
    thread.start()
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Gauges:
    """Live gauges as Prometheus reads them, for whoever names this machine as the host (no DNS rebinding)."""

    token: str | None = None

    def __init__(self, follows: RunWatcher) -> None:
        library = import_library("prometheus_client", EXTRA)
        self._follows, self._one_at_a_time = follows, threading.Lock()
        self._library, self._registry = library, library.CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(lambda: _live_samples(follows.read_state())))

    def answer(self, target: str, headers: Mapping[str, str]) -> HttpAnswer:
        from stepscope.report.view.access import HttpAnswer, is_local_host

        if not is_local_host(headers.get("Host", "")):
            return HttpAnswer(403, "this address is not one of this server's own names")
        if target.partition("?")[0] not in ("/", "/metrics"):
            return HttpAnswer(404, "the gauges are at /metrics")
        with self._one_at_a_time:
            text = self._library.generate_latest(self._registry).decode("utf-8")
        return HttpAnswer(200, text, "text/plain; version=0.0.4; charset=utf-8")

    def close(self) -> None:
        """Close the files of the run."""
        self._follows.close()


class _Collector:
    """Collector that prometheus_client queries for gauges."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Any]:
        """A family of gauges for every name."""
        core = import_library("prometheus_client.core", EXTRA)
        families: dict[str, Any] = {}
        for name, documentation, labels, value in self._samples():
            family = families.setdefault(name, core.GaugeMetricFamily(name, documentation, labels=sorted(labels)))
            family.add_metric([labels[key] for key in sorted(labels)], value)
        yield from families.values()


def _write(samples: Iterable[Sample], target: Path) -> None:
    library = import_library("prometheus_client", EXTRA)
    registry = library.CollectorRegistry(auto_describe=False)
    all_samples = list(samples)
    registry.register(_Collector(lambda: all_samples))
    try:
        library.write_to_textfile(str(target), registry)
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write '{target}': {error.strerror or error}", "choose a file in a folder that you can write"
        ) from error


def _run_samples(run: Run) -> Iterator[Sample]:
    about = {"run": run.id, **_simulated_label(run.simulated)}  # cores and accelerators are those of the board
    state = {"status": run.status, "verdict": run.verdict().bound}
    yield "stepscope_run_info", "The run; always 1.", {**about, **state}, 1.0
    for figure in logged_values(run):
        labels, documentation = {**about, "scope": figure.scope}, f"{figure.name} of the steps after warm-up."
        yield f"stepscope_{figure.name}", documentation, labels, figure.value
        for bound, value in (("low", figure.low), ("high", figure.high)):
            if value is not None:
                yield f"stepscope_{figure.name}_{bound}", f"{bound} end of 95 % of {figure.name}.", labels, value


def _simulated_label(board: str | None) -> dict[str, str]:
    return {"simulated": board} if board else {}


def _live_samples(now: Now) -> Iterator[Sample]:
    """Live gauges; what is not known now is absent."""
    run = {"run": now.run, **_simulated_label(now.simulated)}
    yield "stepscope_live_info", "The run; always 1.", {**run, "name": now.name, "status": now.status}, 1.0
    kind = "simulated_" if now.simulated else ""
    power = f"{kind}power"
    pace = now.pace
    single = {
        "steps_done": (float(pace.done), "Steps that have ended."),
        "steps_planned": (None if now.planned is None else float(now.planned), "Steps that the run is going to have."),
        "step_seconds": (None if pace.step_ns is None else pace.step_ns / 1e9, "Median of the last steps."),
        "samples_per_second": (pace.samples_per_s, "Over the last steps."),
        "loss": (pace.loss, "Of the last step."),
        "resident_memory_bytes": (now.resident_bytes, "Of the training process, or of all processes of the run."),
        "available_memory_bytes": (now.available_bytes, "Of the machine."),
        f"{power}_total_watts": (now.total_w, "Of the whole board."),
    }
    for name, (value, documentation) in single.items():
        if value is not None:
            yield f"stepscope_live_{name}", documentation, run, float(value)
    scoped = {
        "core_utilisation": (now.cores, "core", "Share of the last second."),
        "accelerator_utilisation": (now.accelerators, "accelerator", "Share."),
        f"{kind}temperature_celsius": (now.temperatures, "zone", "Newest reading."),
    }
    for name, (values, label, documentation) in scoped.items():
        for scope, value in values:
            if value is not None:
                yield f"stepscope_live_{name}", documentation, {**run, label: scope}, float(value)
    yield from _rails(now, power)


def _rails(now: Now, power: str) -> Iterator[Sample]:
    """Power of each rail; an estimate has a name of its own, and so has the second rail of one name."""
    counts: Counter[str] = Counter()
    for rail, watts in now.rails:
        counts[rail] += 1
        if watts is not None:
            name = f"stepscope_live_{'estimated_power' if rail.endswith(_ESTIMATED) else power}_watts"
            spoken = rail.removesuffix(_ESTIMATED) + (f"#{counts[rail]}" if counts[rail] > 1 else "")
            labels = {"run": now.run, **_simulated_label(now.simulated), "rail": spoken}
            yield name, "By supply line; lines nest, do not add them.", labels, watts
