"""In the process of a script: wait for torch, record from the first sign of a training, run the script as is.

Nothing of torch is imported before the script imports it, so that what a script sets before (threads, devices) holds.
The script's own process reports nothing: whoever started it does, once it has ended.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import importlib.util
import json
import marshal
import os
import pkgutil
import runpy
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from stepscope.clock import PERIOD_NS
from stepscope.record.fault_boundary import is_ours
from stepscope.record.processes.children import forked_by_server, join_children, when_imported

if TYPE_CHECKING:
    from stepscope.record.session import Session
    from stepscope.runfolder import RunWriter


CLAIM = ".training"  # made by the process that writes the run folder itself
STDIN = "-"  # the target that is read from stdin
SIGNS = ".signs"  # why the script's own process saw no step
_PR_SET_PDEATHSIG = 1  # prctl(2)
_OURS = str(Path(__file__).parents[2])
_MOST_RANKS = 4096
_LAST = -200  # of multiprocessing's finalizers: the training's own come first
_GROUP: Any = vars(builtins).get("BaseExceptionGroup", ())  # since Python 3.11


class Recording:
    """The session of this process, if it ever trains."""

    def __init__(self, orders: Orders, first: bool = False) -> None:
        self.orders = orders
        self._first = first  # the script's own process
        self.session: Session | None = None
        self._faulty = False  # a fault of ours kept it from listening, or our folder the script from going on

    def ended(self, error: BaseException | None) -> None:
        """The script has ended with this; the session closes when the interpreter ends."""
        if self.session is not None:
            from stepscope.record.run_facts import status_of

            self.session.status = status_of(error)
        if isinstance(error, FileExistsError) and _is_same_path(error.filename, Path(self.orders.run).parent):
            self._faulty = True
            why = f"this run is in '{error.filename}', which the script makes itself: put it elsewhere with --out DIR"
            (Path(self.orders.run) / SIGNS).write_text(why, encoding="utf-8")

    def torch_is_here(self, torch: Any) -> None:
        """Listen to the training that torch was imported for, if it is one."""
        try:
            self._listen(torch)
        except BaseException as error:
            if not is_ours(error):
                raise
            self._faulty = True
            if self.session is not None:
                self.session.boundary.close(error)
            if self._first:
                _say_fault(self.orders.run, error)

    def _listen(self, torch: Any) -> None:
        before = _resident_bytes()
        from stepscope.record.session import Session
        from stepscope.record.settings import Metering, Settings

        orders = self.orders
        if orders.threads is not None:
            torch.set_num_threads(orders.threads)
        root, simulated = orders.root, orders.simulate
        if simulated is not None:
            root = _start_simulated_board(simulated, orders)
        if orders.prepare is not None:
            module, _, function = orders.prepare[0].partition(":")
            getattr(importlib.import_module(module), function)(orders.prepare[1])
        settings = Settings(
            out=Path(orders.run).parent,
            name=orders.name,
            record=orders.record,
            memory=orders.memory,
            period_ns=orders.period_ns,
            steps_from="optimizer",
            optimizer_steps_per_step=orders.optimizer_steps_per_step,
            samples_per_step=orders.samples_per_step,
            root=root,
            sampler=simulated is not None,
            metering=Metering(simulated=simulated, max_disk=orders.max_disk),
        )
        self.session = Session(settings, lambda: claim_writer(Path(orders.run)))
        self.session.status = ("ok", None)
        if self._first:
            with contextlib.suppress(OSError):
                (Path(orders.run) / SIGNS).write_text(_LEFT_BEFORE_A_STEP, encoding="utf-8")
            atexit.register(_run_ignoring_our_faults, self._write_why_nothing_recorded)
        self.session.start()
        if forked_by_server():  # it leaves by os._exit, behind the finalizers of multiprocessing
            _close_with_finalizers(self.session)
            sys.modules["multiprocessing.util"].register_after_fork(self.session, _close_with_finalizers)
        after = _resident_bytes()
        if before is not None and after is not None:
            self.session.modules_bytes = max(after - before, 0)

    def _write_why_nothing_recorded(self) -> None:
        """The script's own process saw no training: what it did see is the reason, unless another process trained."""
        session = self.session
        if session is not None and not session.begun and os.getpid() == session.pid and not self._faulty:
            (Path(self.orders.run) / SIGNS).write_text(session.why_no_steps(), encoding="utf-8")


def _close_with_finalizers(session: Session) -> None:
    """Close the session with multiprocessing's finalizers, which it forgets between its imports and its target."""
    with contextlib.suppress(Exception):
        sys.modules["multiprocessing.util"].Finalize(None, session.at_exit, exitpriority=_LAST)


_LEFT_BEFORE_A_STEP = (
    "the process that imported torch left before it had made a step (os._exit, exec, or a daemon that goes on in a "
    "fork of it): what its forks train is not recorded"
)


def run_target(orders_text: str, target: str, arguments: Sequence[str]) -> None:
    """Run a script, or a module, as `python` would; leaves by the script's own exception or SystemExit."""
    words: dict[str, Any] = json.loads(orders_text)
    recording: Recording | None = None
    try:
        recording = _prepare_recording(orders_text)
    except Exception as error:  # a fault of ours: the script runs without us
        with contextlib.suppress(OSError, TypeError):
            os.close(words["go"])
        with contextlib.suppress(Exception):
            _say_fault(words["run"], error)
    sys.argv = [target, *arguments]
    sys.orig_argv = [sys.orig_argv[0], *(["-m"] if words["module"] else []), target, *arguments]
    try:
        if words["module"]:
            run_module_as_main(target)
        elif target == STDIN:
            _run_stdin()
        elif pkgutil.get_importer(target) is not None:  # a folder or an archive with a __main__.py
            sys.path.insert(0, os.path.abspath(target))  # noqa: PTH100 - as python itself
            _reset_main_module(sys.modules["__main__"], None)
            runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        else:
            _run_script(Path(target))
    except BaseException as error:
        if recording is not None:
            _run_ignoring_our_faults(recording.ended, error)
        if not isinstance(error, SystemExit):
            _run_ignoring_our_faults(_show_without_us)
        raise
    if recording is not None:
        _run_ignoring_our_faults(recording.ended, None)


def _prepare_recording(orders_text: str) -> Recording:
    """Return what will record this process, once the one that started it is ready."""
    orders = Orders.from_json(orders_text)
    _end_with_parent()
    _wait_for_go(orders.go)
    orders = replace(orders, go=None)
    recording = Recording(orders, first=True)
    join_children(replace(orders, simulate=None).to_json())
    when_imported("torch", recording.torch_is_here)
    return recording


def _say_fault(run: str, error: BaseException) -> None:
    """Leave word, for the process that started this one, why nothing was recorded."""
    with contextlib.suppress(OSError):
        why = f"a fault in Stepscope: {type(error).__name__}: {error}"
        (Path(run) / SIGNS).write_text(why, encoding="utf-8")


def claim_writer(run: Path) -> RunWriter:
    """The writer of this process: of the run folder itself for the first rank here, or the first that trains without.

    Else of `ranks/`. Without LOCAL_RANK rank 0 is the first; where it is elsewhere, `record.script` sees to that.
    """
    from stepscope.record.run_facts import rank_of_process
    from stepscope.runfolder import RunWriter

    own_rank = rank_of_process()
    rank: int | None = own_rank.get("rank")
    if rank in (0, None) or own_rank.get("local_rank") == 0:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(run / CLAIM, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            return RunWriter.attach(run)
    for number in range(rank or 1, _MOST_RANKS):
        with contextlib.suppress(FileExistsError):
            writer = RunWriter.create_rank(run, number)
            writer.update(**({} if rank is not None else {"process": number}))
            return writer
    raise FileExistsError(f"no folder is free below '{run}/ranks'")


def add_current_folder() -> None:
    """Put the current folder first where modules are looked for, for good: this process runs a module."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(Path.cwd()))


def run_module_as_main(name: str) -> None:
    """Run a module in `__main__` itself, as `python -m` does."""
    add_current_folder()
    _reset_main_module(sys.modules["__main__"], None)
    runpy._run_module_as_main(name, alter_argv=True)  # type: ignore[attr-defined]


def _run_script(path: Path) -> None:
    """Run the script in `__main__` itself, which lives as long as the interpreter."""
    import io

    absolute = os.path.abspath(path)  # noqa: PTH100 - a link stays a link, as with python itself
    with io.open_code(absolute) as file:
        source = file.read()
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(path.resolve().parent))
    main = sys.modules["__main__"]
    _reset_main_module(main, absolute)
    exec(_compile_script(source, absolute), vars(main))


def _run_stdin() -> None:
    """Run stdin as `python -` does: all of it is read before it begins."""
    from importlib.machinery import BuiltinImporter

    source = b"" if sys.stdin is None else sys.stdin.buffer.read()
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, "")
    main = sys.modules["__main__"]
    _reset_main_module(main, None)
    vars(main).update(__loader__=BuiltinImporter, __file__="<stdin>", __cached__=None)
    exec(compile(source, "<stdin>", "exec", dont_inherit=True), vars(main))


def _compile_script(source: bytes, file: str) -> CodeType:
    """Return the code of a script, or of one that was compiled (`python train.pyc`)."""
    if file.endswith(".pyc") and source[:4] == importlib.util.MAGIC_NUMBER:
        code: CodeType = marshal.loads(source[16:])
        return code
    return compile(source, file, "exec", dont_inherit=True)


def _reset_main_module(main: ModuleType, file: str | None) -> None:
    """Make `__main__` what Python gives a script, or a module that it has yet to find."""
    from importlib.machinery import SourceFileLoader

    builtins = vars(main)["__builtins__"]
    vars(main).clear()
    vars(main).update(
        __name__="__main__", __builtins__=builtins, __doc__=None, __package__=None, __spec__=None, __annotations__={}
    )
    if file is not None:
        vars(main).update(__loader__=SourceFileLoader("__main__", file), __file__=file, __cached__=None)


def _is_same_path(name: object, folder: Path) -> bool:
    return isinstance(name, (str, bytes, os.PathLike)) and Path(os.fsdecode(name)).absolute() == folder


def _resident_bytes() -> int | None:
    """Resident memory of this process (proc(5), statm); None where there is no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _end_with_parent() -> None:
    """Should `stepscope run` be killed, so is the training, as if it had been killed itself (Linux)."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait_for_go(descriptor: int | None) -> None:
    if descriptor is None:
        return
    try:
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def _show_without_us() -> None:
    """Show an exception of the script as the interpreter does: beginning with the script."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        own = trace
        with contextlib.suppress(Exception):
            own = _strip_our_frames(trace)
            if own is None and not isinstance(error, (SyntaxError, OSError, ValueError)):
                own = trace  # a fault of ours, before the script began
            for other in _exceptions_shown_with(error):
                other.__traceback__ = _strip_our_frames(other.__traceback__)
        return hook(kind, error.with_traceback(own), own)

    sys.excepthook = show


def _exceptions_shown_with(error: BaseException) -> list[BaseException]:
    """Return the causes, contexts and members of groups that are shown with an exception."""
    related: list[BaseException] = []
    pending = [error]
    while pending:
        current = pending.pop()
        members = getattr(current, "exceptions", ()) if isinstance(current, _GROUP) else ()
        for other in (current.__cause__, current.__context__, *members):
            if isinstance(other, BaseException) and all(other is not exception for exception in (error, *related)):
                related.append(other)
                pending.append(other)
    return related


def _strip_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames; those of runpy stay, which Python shows of a module, a folder or an archive."""
    entries = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OURS):
            entries.append(trace)
        trace = trace.tb_next
    traceback: TracebackType | None = None
    for entry in reversed(entries):
        traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback


def _run_ignoring_our_faults(action: Any, *arguments: Any) -> None:
    try:
        action(*arguments)
    except BaseException as error:
        if not is_ours(error):
            raise


def _start_simulated_board(board: str, orders: Orders) -> str:
    """Start a simulated board beside this process; its truth is stored with the run at the end of the interpreter."""
    from stepscope.runfolder import RunWriter
    from stepscope.simulate import start

    simulation = start(board)

    def end() -> None:
        simulation.stop()
        _run_ignoring_our_faults(lambda: simulation.save_truth(RunWriter.attach(Path(orders.run))))

    atexit.register(lambda: _run_ignoring_our_faults(end))
    return str(simulation.root)


@dataclass(frozen=True)
class Orders:
    """Handed on to every Python process of a script, as JSON."""

    run: str  # absolute path of the run folder
    name: str
    record: str = "adaptive"
    memory: str = "auto"
    period_ns: int = PERIOD_NS
    optimizer_steps_per_step: int | None = None
    samples_per_step: int | None = None
    threads: int | None = None
    root: str | None = None
    simulate: str | None = None  # a board that is simulated beside the script's own process
    module: bool = False  # the target is a module, as with `python -m`
    prepare: tuple[str, str] | None = None  # "module:function" to call once torch is there, and its argument
    max_disk: int | None = None  # bytes that the run may take
    go: int | None = None  # the descriptor that says when the sampler is ready

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """Read what `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)
