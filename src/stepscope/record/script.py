"""Run a user's unmodified training script and measure it: in a process of its own, as `python train.py` would run it.

This process only starts the script and the sampler, waits, and closes the run: what the script does to its process
(exit, exec, forks, signals, descriptors) is between it and the operating system.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.clock import read_clocks
from stepscope.errors import StepscopeError, script_not_found_error
from stepscope.files import atomic_write, read_json_object, replace_json
from stepscope.liveness import is_process_of_run_alive, process_identity
from stepscope.part_names import has_steps
from stepscope.privacy import redact_command_line
from stepscope.record.c_allocators import child_environment
from stepscope.record.processes.training import CLAIM, SIGNS, STDIN, Orders
from stepscope.record.sampler.process import Sampler, start_sampler
from stepscope.record.settings import FLUSH_EVERY_NS, Settings, check_settings
from stepscope.record.signals import signals_passed_on
from stepscope.runfolder import RunWriter
from stepscope.units import plural

_START = Path(__file__).parent / "processes" / "start.py"


def run_script(
    target: str,
    arguments: Sequence[str],
    settings: Settings,
    as_module: bool = False,
    threads: int | None = None,
    malloc: str = "default",
    name: str | None = None,
) -> tuple[Path, int]:
    """(run folder, exit code) of a script, or of a module as with `python -m`; below 0 the signal that ended it.

    What the script prints is the script's; UsageError where there is no script.
    """
    script = Path(target)
    from_stdin = target == STDIN and not as_module
    if not as_module and not from_stdin and not script.is_file() and not (script / "__main__.py").is_file():
        raise script_not_found_error(target)
    check_settings(settings)
    name = name or ("stdin" if from_stdin else target if as_module else script.stem)
    writer = RunWriter.create(settings.out, name)
    writer.update(
        argv=redact_command_line(["stepscope", "run", *(["-m"] if as_module else []), target, "--", *arguments]),
        script=None if from_stdin else str(script),
        launcher_pid=os.getpid(),
        **process_identity(os.getpid()),  # until the training's own process is there
        workload={"name": name},
        clock=read_clocks(),
        warmup_steps=3,
        sampler={"period_ns": settings.period_ns, "max_disk": settings.metering.max_disk},
        recorder={"mode": str(settings.record), "steps_from": "optimizer"},
        **({"power_model": settings.metering.power_model} if settings.metering.power_model else {}),
    )
    orders = Orders(
        run=str(writer.path),
        name=name,
        record=str(settings.record),
        memory=settings.memory,
        period_ns=settings.period_ns,
        optimizer_steps_per_step=settings.optimizer_steps_per_step,
        samples_per_step=settings.samples_per_step,
        threads=threads,
        root=settings.root,
        simulate=settings.metering.simulated,
        module=as_module,
        prepare=settings.prepare,
        max_disk=settings.metering.max_disk,
    )
    code = _run_training_script(orders, target, arguments, settings, writer, malloc)
    try:
        _close_run(writer, code, settings.root)
    except Exception as error:  # a fault of ours, or no stderr: the exit code is the script's
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"the run in '{writer.path}' could not be closed: {type(error).__name__}: {error}\n")
    return writer.path, code


def _run_training_script(
    orders: Orders, target: str, arguments: Sequence[str], settings: Settings, writer: RunWriter, malloc: str
) -> int:
    go, tell = _pipe_above_stdio()
    text = replace(orders, go=go).to_json()
    options = interpreter_options(sys.orig_argv[1:])
    command = [sys.executable, *options, str(_START), text, target, *arguments]
    environment = None if malloc == "default" else child_environment(malloc)
    os.set_inheritable(go, True)
    try:  # with the descriptors that this process was given: `train.py <(zcat data.gz)`, a lock, a supervisor's pipe
        child = subprocess.Popen(command, close_fds=False, env=environment)
    finally:
        os.close(go)
    # Ignored, the kernel would keep no exit code; the script has inherited it as it was.
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        return _run_with_sampler(child, tell, writer, settings)
    except Exception as error:  # a fault of ours: the script is there, and runs on by itself
        with contextlib.suppress(Exception):
            writer.append_event(
                "profiling-failed", f"a fault in Stepscope beside the script: {type(error).__name__}: {error}"
            )
        with contextlib.suppress(OSError):
            os.close(tell)
        return child.wait()


def _run_with_sampler(child: subprocess.Popen[bytes], tell: int, writer: RunWriter, settings: Settings) -> int:
    """Start the sampler, let the script begin, and return its exit code once it has ended."""
    with signals_passed_on(child):
        sampler = None if settings.metering.simulated else _try_start_sampler(writer, settings, child.pid)
        os.close(tell)  # the end of the pipe is the word
        code = child.wait()
        if sampler is not None:
            end = sampler.stop()
            if end.died_early and end.exit_code != 0:  # with the script it ends by itself, in order
                _note_event(writer, "sampler-lost", f"the sampling process ended early: {end.reason}")
    return code


def interpreter_options(words: Sequence[str]) -> list[str]:
    """Return the options that this Python was given, for the script's; what the environment says, it says there too."""
    options: list[str] = []
    remaining = list(words)
    while remaining and remaining[0].startswith("-") and remaining[0] not in ("-", "--"):
        word = remaining.pop(0)
        if word.startswith("--"):
            options += [word, *remaining[:1]]  # --check-hash-based-pycs, the only one that starts a program
            del remaining[:1]
            continue
        letters = ""
        for index, letter in enumerate(word[1:], 1):
            if letter in "cm":
                return [*options, *([f"-{letters}"] if letters else [])]
            if letter in "WX":
                letters += letter + (word[index + 1 :] or "".join(remaining[:1]))
                del remaining[: word[index + 1 :] == ""]
                break
            letters += letter if letter != "i" else ""  # at its end this process is not interactive either
        options += [f"-{letters}"] if letters else []
    return options


def _pipe_above_stdio() -> tuple[int, int]:
    """Return the ends of a pipe, neither where an output that was closed is missing: the script must miss it too."""
    low = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in low]
    for end in low:
        os.close(end)
    return ends[0], ends[1]


def _try_start_sampler(writer: RunWriter, settings: Settings, pid: int) -> Sampler | None:
    try:
        return start_sampler(
            writer.path,
            settings.period_ns,
            root=settings.root,
            metering=settings.metering,
            pid=pid,
        )
    except (StepscopeError, OSError) as error:
        _note_event(writer, "sampler-failed", str(error))
        return None


def _close_run(writer: RunWriter, code: int, root: str | None) -> None:
    """Write what the training's own processes could not: that none of them trained, or how the last one was ended."""
    claimed = promote_first_part_with_steps(writer.path) or (writer.path / CLAIM).exists()
    whole = RunWriter.attach(writer.path)
    if claimed and not (writer.path / "device.json").exists():  # which rank 0 writes, here on another machine
        from stepscope.record.run_facts import device_json

        whole.write_device(device_json(root))
    if not claimed:
        whole.append_event("no-steps", "no step ended while this run was recorded: " + _why_no_training(writer.path))
    if not claimed or whole.status == "running":
        whole.update(clock_end=read_clocks())
        whole.close(*_status_of_exit(code, claimed))
    elif code > 0 and whole.status == "ok":  # a process that trained ended well, and the script did not
        whole.close("failed", f"exit code {code}")
    for sign in (CLAIM, SIGNS):
        (writer.path / sign).unlink(missing_ok=True)


def _why_no_training(run: Path) -> str:
    noted = run / SIGNS
    with contextlib.suppress(OSError):
        why = noted.read_text(encoding="utf-8")
        noted.unlink()
        return why
    return (
        "torch was not imported by the script, or by a Python process that it started; "
        "what a process does after it has replaced itself (exec) is not seen"
    )


def _status_of_exit(code: int, claimed: bool) -> tuple[str, str | None]:
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = " (by somebody, or by the system when memory ran out)" if -code == signal.SIGKILL else ""
        return "interrupted", "Ctrl-C" if -code == signal.SIGINT else f"ended by {name}{hint}"
    if claimed:
        missing = f"steps of its last {FLUSH_EVERY_NS / 1e9:g} s are missing"
        why = f"the process left without ending its run (os._exit or exec), exit code {code}: {missing}"
        return "interrupted", why
    return ("ok", None) if code == 0 else ("failed", f"exit code {code}")


def _note_event(writer: RunWriter, kind: str, message: str) -> None:
    with contextlib.suppress(OSError):
        writer.append_event(kind, message)


def losses_of_run(run: Path) -> str | None:
    """Return a line for the user on what the disk refused of a run, and what helps; None where it took all."""
    counts = {"step": 0, "profiling window": 0, "sensor reading": 0}
    for folder in (run, *(run / _PARTS).glob("*")):
        header = read_json_object(folder / _HEADER)
        counts["step"] += header.get("steps_lost") or 0
        counts["profiling window"] += (header.get("recorder") or {}).get("lost_windows") or 0
        with contextlib.suppress(OSError, ValueError):  # a last line that was cut off
            for line in (folder / _EVENTS).read_bytes().splitlines():
                counts["sensor reading"] += (json.loads(line).get("rows") or 0) if b'"gap"' in line else 0
    missing = [plural(count, what) for what, count in counts.items() if count]
    if not missing:
        return None
    return (
        f"stepscope: {' and '.join(missing)} could not be written to '{run}' and are missing: make room on its disk, "
        "choose another folder with --out DIR, or limit what a run takes with --max-disk"
    )


def exit_like_script(code: int) -> int:
    """The exit code for this process: of a script that a signal ended, the same end."""
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the script has left its core, where it wanted one
    with contextlib.suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), -code)
    return 128 - code  # a signal that is ignored or blocked


_PARTS, _EVENTS, _HEADER = "ranks", "events.jsonl", "run.json"
_OF_PROCESS = ("ops", "layers", "memory", "model.json", "sources.json", "accesses.json", ".reserve")
_OF_COMMAND = ("schema", "id", "argv", "script", "launcher_pid", "power_model", "simulated", "simulated_settings")


# The folder of a run belongs to the first process that seemed to train, or to rank 0. Where that made no step (a
# launcher that tried its model before it started the ranks, a worker that called an encoder, no rank 0 on this
# machine), its files and those of the first part with steps change places. What is of the machine stays: sensors,
# device, events.


def promote_first_part_with_steps(run: Path) -> bool:
    """Give the run the steps of its first part that has some, where it has none of its own; True where it did."""
    if has_steps(run):
        return False
    parts = [path for path in (run / _PARTS).glob("*") if path.name.isdecimal() and has_steps(path)]
    part = min(parts, key=lambda path: int(path.name), default=None)
    header = read_json_object(run / _HEADER)
    if part is None or not header:
        return False
    trained = read_json_object(part / _HEADER)
    if not trained or any(_is_written(path, its) for path, its in ((run, header), (part, trained))):
        return False
    _copy_events(part, run)  # first: where the disk is full, all stays as it was
    _swap_files(run, part)
    _rename_scopes(run / "channels.json", {"rank:0": f"rank:{part.name}", f"rank:{part.name}": "rank:0"})
    of_command = {name: value for name, value in header.items() if name in _OF_COMMAND}
    of_process = {name: value for name, value in trained.items() if name not in (*_OF_COMMAND, "process")}
    replace_json(run / _HEADER, {**of_process, **of_command}, whole=True)
    if isinstance(header.get("rank"), int):  # a member of the process group: how it ended is to be known
        former = {name: value for name, value in header.items() if name not in _OF_COMMAND}
        replace_json(part / _HEADER, {**former, "schema": trained["schema"], "id": trained["id"]}, whole=True)
    else:
        shutil.rmtree(part)
        with contextlib.suppress(OSError):  # other parts are in it
            part.parent.rmdir()
    return True


def _is_written(path: Path, header: dict[str, Any]) -> bool:
    """Return whether the process of a part may still write: a launcher that waits writes nothing."""
    own = header.get("pid") != header.get("launcher_pid")
    return own and header.get("status") == "running" and is_process_of_run_alive(header, path)


def _swap_files(run: Path, part: Path) -> None:
    """Let the files of the two processes change places; what only one of them has moves."""
    waiting = run / f".{_PARTS}"
    waiting.mkdir()
    for source, target in ((run, waiting), (part, run), (waiting, part)):
        for path in [*source.glob("steps*"), *(source / name for name in _OF_PROCESS)]:
            if path.exists():
                path.rename(target / path.name)
    waiting.rmdir()


def _copy_events(part: Path, run: Path) -> None:
    """Add the events of a part to those of the run, without those that miss steps."""
    lines = [
        line
        for path in (run / _EVENTS, part / _EVENTS)
        if path.exists()
        for line in path.read_bytes().splitlines(keepends=True)
        if b'"no-steps"' not in line
    ]
    if (run / _EVENTS).exists() or lines:
        with atomic_write(run / _EVENTS, whole=True) as whole:
            whole.write_bytes(b"".join(lines))


def _rename_scopes(channels: Path, names: dict[str, str]) -> None:
    """Let the channels of the two processes have the scopes of their new places."""
    table = read_json_object(channels)
    for channel in table.get("channels") or []:
        channel["scope"] = names.get(channel.get("scope"), channel.get("scope"))
    if table:
        replace_json(channels, table, whole=True)
