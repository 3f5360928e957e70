"""Processes that a script starts while it is followed: their memory is not known, and none outlives the answer."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import multiprocessing
import os
import shlex
import subprocess
import sys
import weakref
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stepscope.footprint.script_progress import Progress, resident_bytes, temporary_attribute
from stepscope.footprint.script_ranks import Ranks
from stepscope.footprint.time_limit import TimeLimitReached

_PATIENCE_S = 5.0  # for a process that was asked to end
_MEMORY_UNKNOWN = "what processes take that it starts"
_CHANGING = """
    rm rmdir unlink shred mv cp ln install rsync scp sftp tee dd truncate touch mkdir mkfifo chmod chown > tar zip unzip
    gzip gunzip bzip2 xz zstd 7z unrar wget curl aws gsutil gcloud azcopy kaggle huggingface-cli hf
"""
_CHANGE_FILES = frozenset(_CHANGING.split())
_ACTING = """
    shutdown poweroff reboot halt systemctl service kill pkill killall sbatch srun qsub bsub scancel mail mailx mutt
    sendmail msmtp ssh docker podman kubectl sqlite3 psql mysql mongosh redis-cli rclone s3cmd az dvc crontab at
"""
_ACT_ELSEWHERE = frozenset(_ACTING.split())
_OF_GIT = "add am checkout clean commit fetch init merge mv pull push rebase reset rm stash tag"
_OF_NVIDIA = "-pl -pm -r -lgc -rgc -lmc -rmc --power-limit --gpu-reset"
_ACTING_WORDS = {"git": frozenset(_OF_GIT.split()), "nvidia-smi": frozenset(_OF_NVIDIA.split())}  # else these answer
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

    def __init__(self, progress: Progress, ranks: Ranks) -> None:
        self._progress, self._ranks = progress, ranks
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

    def _is_refused(self, command: Any, programs: list[str]) -> bool:
        """Return whether a command is not run, and say so, since it would do more than answer."""
        if self._progress.updates == 0 and _starts_itself(command):
            raise TimeLimitReached("it starts itself, or a training, in another process: give fit that one", None)
        changing = next((program for program in programs if program in _CHANGE_FILES), None)
        unrun = changing or next((program for program in programs if _acts_elsewhere(program, command)), None)
        if unrun is not None:
            what = "change files" if changing is not None else "send, start jobs or change more than files"
            self._progress.note_missed(f"what {unrun!r} does: programs that {what} are not run")
        return unrun is not None

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Know what it starts, and end it at last."""
        plain, plain_program = BaseProcess.start, subprocess.Popen.__init__
        plain_life, plain_end = BaseProcess._bootstrap, BaseProcess.terminate  # type: ignore[attr-defined]
        at_birth = weakref.WeakKeyDictionary[Any, mmap.mmap]()  # B that each was born with, which it writes there

        def start(process: Any) -> None:
            if os.getpid() == self._process and self._ranks.follow(process):
                return
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
            command = arguments[0] if arguments else options.get("args", ())
            if self._is_refused(command, programs := _programs_of_command(command)):
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
                temporary_attribute(subprocess.Popen, "__init__", run), self._ranks.intercept(),
            ):  # fmt: skip
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


_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch")


def _starts_itself(command: Any) -> bool:
    """Return whether a command runs the script anew, or a program that starts trainings: it would train for real."""
    words = command.split() if isinstance(command, str) else command if isinstance(command, (list, tuple)) else []
    names = [Path(os.fsdecode(word)).name for word in words]
    runs_python = bool(names) and names[0].startswith("python")
    return any(name in _LAUNCHERS for name in names[:3]) or (runs_python and Path(sys.argv[0]).name in names)


def _acts_elsewhere(program: str, command: Any) -> bool:
    """Return whether a program of a command ends something, sends, starts jobs, or changes what is no file."""
    words = command if isinstance(command, (list, tuple)) else [command]
    spoken = {part for word in words for part in os.fsdecode(word).split()}
    return program in _ACT_ELSEWHERE or not spoken.isdisjoint(_ACTING_WORDS.get(program, ()))


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
    behind = itertools.dropwhile(lambda word: word in _BEFORE_PROGRAMS or word.startswith("-") or "=" in word, words)
    return [Path(word).name for word in behind][:1]


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
