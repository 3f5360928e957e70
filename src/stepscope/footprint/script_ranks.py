"""Trainings that a script starts in processes of their own: the first of them is followed in this one.

`Process(target=train).start()`, `torch.multiprocessing.spawn(train, nprocs=4)`: what the first of them does is done
where it is started. The others train alike and are not started. Of a process group it is the only member, and hears of
as many as there would be.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import torch.distributed

from stepscope.footprint.script_progress import Progress, temporary_attribute
from stepscope.record.fault_boundary import is_foreign
from stepscope.units import plural

_SPAWN = "torch.multiprocessing.spawn"
_STARTER = "what the process takes that starts the training in another"


class Ranks:
    """Processes of one script that train; `trains` says whether a function of that name does, or one that it calls."""

    def __init__(self, progress: Progress, trains: Callable[[str], bool], fake: bool) -> None:
        self._progress, self._trains, self._fake = progress, trains, fake
        self.others: int | None = None  # members of its process group that are not there; None without a group
        self._followed: list[_FollowedProcess] = []

    def follow(self, process: BaseProcess) -> bool:
        """Do here what a process would that trains; False of one that is to be started."""
        target = _target_of(process)
        code = getattr(getattr(target, "func", target), "__code__", None)
        if target is None or code is None or not is_foreign(code.co_filename) or not self._trains(code.co_name):
            return False
        if self._progress.updates and not self._followed:
            return False  # the script trains by itself
        self._progress.note_missed(_STARTER)
        if self._followed:
            self._progress.note_missed("other processes that train as the first one does: each takes as much again")
            self._progress.rest_unknown = True
        self._followed.append(_FollowedProcess())
        vars(process).update(_popen=self._followed[-1], _sentinel=self._followed[-1].sentinel)
        if len(self._followed) == 1:
            with contextlib.suppress(SystemExit):  # of that process alone
                target()
        return True

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Let a script be a member of process groups by itself."""
        if not torch.distributed.is_available():
            yield
            return
        plain, plain_size = torch.distributed.init_process_group, torch.distributed.get_world_size

        def join_alone(*arguments: Any, **options: Any) -> None:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            store: Any = FakeStore() if self._fake else torch.distributed.HashStore()  # type: ignore[attr-defined]
            names = ("backend", "init_method", "timeout", "world_size", "rank")
            requested = {**dict(zip(names, arguments, strict=False)), **options}
            sizes = {name: requested.get(name, -1) for name in ("rank", "world_size")}
            for name, least in (("rank", 0), ("world_size", 1)):
                sizes[name] = sizes[name] if sizes[name] >= least else int(os.environ.get(name.upper(), least))
            self.others = sizes["world_size"] - 1
            if not self._fake:
                sizes = {"rank": 0, "world_size": 1}
            plain("fake" if self._fake else "gloo", store=store, **sizes)
            if self.others:
                others = plural(self.others, "other member")
                self._progress.note_missed(f"{others} of its process group, and what they send")
                self._progress.rest_unknown = True

        def count_members(*arguments: Any, **options: Any) -> int:
            return self.others + 1 if self.others and not (arguments or options) else plain_size(*arguments, **options)

        try:
            with (
                temporary_attribute(torch.distributed, "init_process_group", join_alone),
                temporary_attribute(torch.distributed, "get_world_size", count_members),
            ):
                yield
        finally:
            for followed in self._followed:
                followed.close()
            if self.others is not None and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def _target_of(process: BaseProcess) -> Callable[[], Any] | None:
    """Return what a process will do; of torch's spawn what it was given."""
    target: Any = getattr(process, "_target", None)
    arguments: tuple[Any, ...] = getattr(process, "_args", ())
    options: dict[str, Any] = getattr(process, "_kwargs", {})
    if target is None:
        return None if type(process).run is BaseProcess.run else functools.partial(type(process).run, process)
    if getattr(target, "__module__", "") == _SPAWN and len(arguments) > 2:
        target, rank, own = arguments[:3]
        arguments, options = (rank, *own), {}
    if isinstance(target, functools.partial):
        target, arguments = target.func, (*target.args, *arguments)
        options = {**process._target.keywords, **options}  # type: ignore[attr-defined]
    return functools.partial(target, *arguments, **options)


class _FollowedProcess:
    """A process that has ended well, as `multiprocessing` knows it."""

    returncode = 0

    def __init__(self) -> None:
        self.pid, self.sentinel = os.getpid(), os.open(os.devnull, os.O_RDONLY)

    def poll(self) -> int:
        return 0

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def terminate(self) -> None:
        """Do nothing: it has ended."""

    kill = terminate

    def close(self) -> None:
        """Let go what tells of its end."""
        with contextlib.suppress(OSError):
            os.close(self.sentinel)
