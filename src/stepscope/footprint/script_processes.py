"""Processes that a script starts while it is followed: their memory is not known, and none outlives the answer."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import shlex
import subprocess
import weakref
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stepscope.footprint.script_progress import Progress, resident_bytes, temporary_attribute
from stepscope.footprint.time_limit import TimeLimitReached

_PATIENCE_S = 5.0  # for a process that was asked to end
_MEMORY_UNKNOWN = "what processes take that it starts"
_CHANGING = """
    rm rmdir unlink shred mv cp ln install rsync scp sftp tee dd truncate touch mkdir mkfifo chmod chown > tar zip unzip
    gzip gunzip bzip2 xz zstd 7z unrar wget curl aws gsutil gcloud azcopy kaggle huggingface-cli hf
"""
_CHANGE_FILES = frozenset(_CHANGING.split())
_SMALL = """
    git nvidia-smi rocm-smi uname hostname whoami date lscpu nproc free df ls cat echo which file true sleep ps
    ldconfig gcc cc ld objdump sysctl sw_vers getconf id tty stty lsb_release
"""
_SMALL_PROGRAMS = frozenset(_SMALL.split())  # they take little, and scripts write down what they answer
_NUMBER_BYTES = 8  # of a number that a child shares with this process
_WORTH = 30_000_000  # B that a process takes beyond what it was born with, that are worth a word
_SHELLS = ("sh", "bash", "zsh", "dash")
_BEFORE_PROGRAMS = frozenset(("sudo", "env", "exec", "nohup", "xargs", "time", "!", "{", "then", "do", "else"))


class Processes:
    """Processes of one script; those that would run it anew, unfollowed, are not started: it is left there."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started: list[Any] = []
        self._process = os.getpid()
        self._has_run_program = False
        self._growth = mmap.mmap(-1, _NUMBER_BYTES)  # B at most by which a child has grown, which writes it here

    def note_running(self) -> None:
        """Say where some run beside the training."""
        if os.getpid() == self._process and any(map(_runs, self._started)):
            self._progress.note_missed(_MEMORY_UNKNOWN)

    def _note_ended(self) -> None:
        """Say where some have run before an update, or after the last one, and took memory."""
        if self._has_run_program or _number_in(self._growth) > _WORTH:
            self._progress.note_missed(_MEMORY_UNKNOWN)

    def _note_growth(self, process: str, at_birth: int) -> None:
        peak = resident_bytes(at_most=True, process=process) - at_birth
        _write_number(self._growth, max(peak, _number_in(self._growth)))

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Know what it starts, and end it at last."""
        plain, plain_program = BaseProcess.start, subprocess.Popen.__init__
        plain_life, plain_end = BaseProcess._bootstrap, BaseProcess.terminate  # type: ignore[attr-defined]
        at_birth = weakref.WeakKeyDictionary[Any, mmap.mmap]()  # B that each was born with, which it writes there

        def start(process: Any) -> None:
            how = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if how != "fork":
                raise TimeLimitReached(f"it starts a process by '{how}', which runs the script anew", None)
            at_birth[process] = mmap.mmap(-1, _NUMBER_BYTES)
            plain(process)
            self._started.append(process)

        def live(process: Any, *arguments: Any, **options: Any) -> Any:
            """Run in the child, which says at its end by how much it grew."""
            _write_number(at_birth[process], resident_bytes())
            try:
                return plain_life(process, *arguments, **options)
            finally:
                self._note_growth("self", _number_in(at_birth[process]))

        def terminate(process: Any) -> None:
            if process in at_birth and _number_in(at_birth[process]) and _runs(process):
                self._note_growth(str(process.pid), _number_in(at_birth[process]))
            plain_end(process)

        def run(opened: Any, *arguments: Any, **options: Any) -> None:
            programs = _programs_of_command(arguments[0] if arguments else options.get("args", ()))
            changing = next((program for program in programs if program in _CHANGE_FILES), None)
            if changing is not None:
                self._progress.note_missed(f"what {changing!r} does: programs that change files are not run")
                arguments, options = (["true"], *arguments[1:]), {**options, "executable": None}
                options.pop("args", None)
            elif os.getpid() == self._process:
                self._has_run_program |= not _SMALL_PROGRAMS.issuperset(programs)
            plain_program(opened, *arguments, **options)
            self._started.append(opened)

        try:
            with (
                temporary_attribute(BaseProcess, "start", start),
                temporary_attribute(BaseProcess, "_bootstrap", live),
                temporary_attribute(BaseProcess, "terminate", terminate),
                temporary_attribute(subprocess.Popen, "__init__", run),
            ):
                yield
        finally:
            if os.getpid() == self._process:  # a fork of the script's may come here too
                self._end()
                self._note_ended()

    def _end(self) -> None:
        for process in self._started:
            with contextlib.suppress(Exception):
                process.terminate()
        for process in self._started:
            with contextlib.suppress(Exception):
                if not _wait_for_end(process, _PATIENCE_S):
                    process.kill()
                    _wait_for_end(process, _PATIENCE_S)
                for pipe in filter(None, (getattr(process, name, None) for name in ("stdin", "stdout", "stderr"))):
                    pipe.close()


def _number_in(memory: mmap.mmap) -> int:
    return int.from_bytes(memory[:_NUMBER_BYTES], "little")


def _write_number(memory: mmap.mmap, number: int) -> None:
    memory[:_NUMBER_BYTES] = number.to_bytes(_NUMBER_BYTES, "little")


def _programs_of_command(command: Any) -> list[str]:
    """Return the programs that a command runs, of a line for the shell too, and ">" where it writes to a file."""
    if isinstance(command, (str, bytes)):
        return _programs_of_line(os.fsdecode(command))
    words = [os.fsdecode(word) for word in (command if isinstance(command, (list, tuple)) else [command])]
    if words and Path(words[0]).name in _SHELLS and "-c" in words[:-1]:
        return _programs_of_line(words[words.index("-c") + 1])
    return [Path(word).name for word in words[:1]]


def _programs_of_line(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quotation without an end
        return [">"]
    programs, is_first = [], True
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in (">", ">>") and not following.startswith("/dev/"):
            programs.append(">")
        elif is_first and word not in _BEFORE_PROGRAMS and "=" not in word:
            programs.append(Path(word).name)
        is_first = word in _BEFORE_PROGRAMS or (is_first and "=" in word) or not set(word) - set("();|&")
    return programs


def _wait_for_end(started: Any, within_s: float) -> bool:
    """Wait for its end, so that nothing is left of it: a zombie, or a warning that it still runs."""
    if isinstance(started, BaseProcess):
        started.join(within_s)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(within_s)
    return not _runs(started)


def _runs(started: Any) -> bool:
    if isinstance(started, BaseProcess):
        with contextlib.suppress(ValueError):  # it is closed
            return started.is_alive()
        return False
    return started.poll() is None
