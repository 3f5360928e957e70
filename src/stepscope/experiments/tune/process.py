"""The tuning process seen from outside: it trains a workload or the user's script, and makes steps on command.

Commands and answers are lines of JSON through two pipes. `TrainingProcess` sends the commands; the process itself runs
`stepscope.experiments.tune.child`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.clock import monotonic_ns
from stepscope.errors import StepscopeError, UsageError


class TrainingEnded(StepscopeError):
    """The process of a training ended, or gave no answer in time; the message says how."""


class NoAnswer(TrainingEnded):
    """The process of a training gave no answer in time."""


class CannotGoOn(UsageError):
    """Nothing more can be measured: the experiment ends with what it has."""


class TooShort(CannotGoOn):
    """A script that makes too few steps as it is: nothing can be tried on it."""


class TrainingProcess:
    """A training in a process of its own, with an environment and changes that it begins with."""

    def __init__(
        self, orders: Mapping[str, Any], log: Path, environment: Mapping[str, str], at_start: Sequence[str] = ()
    ) -> None:
        self._log = log
        orders_end, tell = os.pipe()
        hear, heard = os.pipe()
        text = json.dumps({**orders, "at_start": list(at_start), "parent": os.getpid(), "pipes": [orders_end, heard]})
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as out:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "stepscope.experiments.tune.child", text],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, pass_fds=(orders_end, heard),
                    env={**os.environ, **environment}, start_new_session=True,
                )  # fmt: skip
        except OSError:
            os.close(tell)
            os.close(hear)
            raise
        finally:
            os.close(orders_end)
            os.close(heard)
        self._tell, self._hear, self._rest = tell, hear, b""

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
        """Send a command and return its answer; TrainingEnded where none comes in time, UsageError for a refusal."""
        try:
            os.write(self._tell, (json.dumps(command) + "\n").encode())
        except OSError:
            raise TrainingEnded(self._end_text()) from None
        answer: dict[str, Any] = json.loads(self._line(limit_s))
        if "refused" in answer:
            raise UsageError(answer["refused"], answer.get("hint"))
        if "failed" in answer:
            raise TrainingEnded(str(answer["failed"]))
        return answer

    @property
    def ended(self) -> bool:
        """Return whether the process is gone."""
        return self._child.poll() is not None

    def close(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for pipe in (self._tell, self._hear):
            with contextlib.suppress(OSError):
                os.close(pipe)

    def _line(self, limit_s: float) -> bytes:
        until_ns = monotonic_ns() + round(limit_s * 1e9)
        while b"\n" not in self._rest:
            ready = select.select([self._hear], [], [], max(0.0, (until_ns - monotonic_ns()) / 1e9))[0]
            if not ready:
                raise NoAnswer(f"it gave no answer within {limit_s:.0f} s")
            part = os.read(self._hear, 1 << 16)
            if not part:
                raise TrainingEnded(self._end_text())
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _end_text(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        if self._child.returncode is None:
            return "the training closed the pipe to this process (os.closerange?), and cannot be told what to do"
        return f"the training ended (exit code {self._child.returncode}): {self.printed or 'it printed nothing'}"

    @property
    def printed(self) -> str:
        """Return the last line that the process printed; "" where there is none."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else ""


class RestartingTraining:
    """A training that is started again where its process is gone: a script that ended, a change that ended it."""

    def __init__(
        self, orders: Mapping[str, Any], log: Path, environment: Mapping[str, str], at_start: Sequence[str] = ()
    ) -> None:
        self._at_start = tuple(at_start)
        self._start: Callable[[], TrainingProcess] = functools.partial(
            TrainingProcess, orders, log, environment, at_start
        )
        self._is_module = bool(orders.get("module"))
        self._ends_with_failure = "script" in orders  # whose process prints why, and ends a little later
        self._process = self._start()
        self._facts: Mapping[str, Any] | None = None
        self._gone = False

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
        """Send a command and return its answer; TooShort where the script as it is makes too few steps for it."""
        if command["do"] == "use":
            self._facts = command["facts"]
        if self._gone:
            self._restart(limit_s)
        answer, failed, restarted = self._ask_once(limit_s, command), "", {}
        if "over" in answer:
            failed = str(answer["why"]) if answer.get("raised") and not command.get("changes") else ""
            began_ns = monotonic_ns()
            self._restart(limit_s)
            restarted = {"restart_s": (monotonic_ns() - began_ns) / 1e9}
            answer = self._ask_once(limit_s, command)
        if "over" in answer:
            self._gone = True
            if self._at_start or command.get("changes"):
                raise TrainingEnded(f"with it {answer['why']}, after {answer['over']} training steps")
            few = f"it makes {answer['over']} training steps, too few to tune it"
            printed = self._process.printed
            if answer["over"]:
                raise TooShort(f"{answer['why']}: {few}", "give it arguments with which it trains longer, after --")
            hint = f"run it by itself: python {'-m MODULE' if self._is_module else 'SCRIPT'}"
            raise TooShort(f"{answer['why']}: it printed: {printed or 'nothing'}", hint)
        if command["do"] == "facts":
            self._facts = answer
        return {**answer, **restarted, **({"began_again_since": failed} if failed else {})}

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _ask_once(self, limit_s: float, command: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._process.ask(limit_s, **command)
        except NoAnswer:  # what it answers late would be taken for the answer to another command
            self._process.close()
            self._gone = True
            raise
        except TrainingEnded:
            self._gone = self._ends_with_failure or self._process.ended
            raise

    def _restart(self, limit_s: float) -> None:
        self._process.close()
        self._process = self._start()
        self._gone = False
        if self._facts is not None:
            self._ask_once(limit_s, {"do": "use", "facts": self._facts})
