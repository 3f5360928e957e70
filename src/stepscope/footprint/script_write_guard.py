"""A guard below all that answers for a script's files: what would still write to one of the user's is not done.

Python tells its audit hooks of each file before it opens, moves or removes it, whoever asks: a class of io, a function
that a library has kept, another thread. A hook stays in a process; outside of `guard_writes` it does nothing.

Where a script is followed into what it may never come to (`alone`), it starts no process and reaches nothing outside:
no network, no data base, no library of the system. Nowhere does it put another program in place of this one or of a
child, or send anything to a server: what it would send is made up. It may fetch what it asks for.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import re
import socket
import ssl
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stepscope.footprint.script_overlay import WRITES, Overlay
from stepscope.footprint.script_progress import temporary_attribute
from stepscope.footprint.time_limit import TimeLimitReached
from stepscope.record.fault_boundary import is_foreign

# By event: which arguments are files, and which the descriptor of the folder that each lies in.
_PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "open": ((0, None),),
    "os.remove": ((0, 1),), "os.rmdir": ((0, 1),), "os.mkdir": ((0, 2),), "os.truncate": ((0, None),),
    "os.rename": ((0, 2), (1, 3)), "os.link": ((1, 3),), "os.symlink": ((1, 2),),
}  # fmt: skip
_OUTSIDE = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn", "os.kill", "os.killpg",
    "signal.pthread_kill", "socket.connect", "socket.sendto", "socket.sendmsg", "sqlite3.connect", "ctypes.dlopen",
    "ctypes.dlsym", "ctypes.call_function", "webbrowser.open", "syslog.syslog",
}  # fmt: skip
_PROGRAMS = {"os.exec", "os.posix_spawn"}  # that are started by no call that knows which do no more than answer
_watched: list[Overlay] = []
_alone: list[Overlay] = []  # of them, those of scripts that reach nothing outside
_bystanders = weakref.WeakSet[threading.Thread]()  # that ran before: they are not the script's
_left = weakref.WeakKeyDictionary[threading.Thread, Overlay]()  # threads of scripts that have ended


@contextlib.contextmanager
def guard_writes(files: Overlay, alone: bool) -> Iterator[None]:
    """Raise TimeLimitReached where a file of the user's would be written to, moved or removed; alone: see the module.

    A thread of the script's that is left behind ends where it would do so later.
    """
    _listen()
    before = set(threading.enumerate())
    _bystanders.update(before - {threading.current_thread()})  # before they could be refused anything
    _watched.append(files)
    _alone.extend([files] if alone else [])
    try:
        with _refuse_uploads():
            yield
    finally:
        _watched.remove(files)
        _alone.clear()
        _bystanders.clear()
        new = [thread for thread in threading.enumerate() if thread not in before]
        _left.update((thread, files) for thread in new if _is_of_script(thread))


_FETCHING = ("GET", "HEAD", "OPTIONS", "CONNECT")
_UPLOAD = re.compile(rb"(POST|PUT|PATCH|DELETE) |PRI \* HTTP/2|(?i:MAIL FROM:)")  # so begins what sends something
_OWN_HOSTS = ("localhost", "127.0.0.1", "::1")


@contextlib.contextmanager
def _refuse_uploads() -> Iterator[None]:
    """Let a script fetch from a server by HTTP, but send it nothing, by whichever library: they all write to sockets.

    What goes by C alone is not seen: gRPC has a proxy then that is not there (`script_exit`).
    """
    follower, connection = threading.current_thread(), http.client.HTTPConnection
    plain_request = connection.putrequest

    def refuse(what: str, host: str) -> None:
        thread = threading.current_thread()
        if host in _OWN_HOSTS or thread in _bystanders:
            return
        if thread is not follower:  # as where there is no network
            raise ConnectionRefusedError(f"Stepscope lets no script send to {host}")
        raise TimeLimitReached(f"it would send something to {host} ({what})", None)

    def putrequest(opened: Any, method: str, *more: Any, **options: Any) -> None:
        if method.upper() not in _FETCHING:
            refuse(method, opened.host)
        plain_request(opened, method, *more, **options)

    def guarded(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def send(opened: Any, content: Any, *more: Any, **options: Any) -> Any:
            pieces = content if isinstance(content, (list, tuple)) else [content]
            upload = _UPLOAD.match(bytes(memoryview(pieces[0]).cast("B")[:_METHOD])) if pieces else None
            if upload is not None:
                what = upload[0].decode().split()[0].upper()
                refuse(what, "a mail server" if what == "MAIL" else _host_of(opened))  # one here sends it on
            return plain(opened, content, *more, **options)

        return send

    with contextlib.ExitStack() as stack:
        stack.enter_context(temporary_attribute(connection, "putrequest", putrequest))
        for owner, name in _SENDING:
            stack.enter_context(temporary_attribute(owner, name, guarded(getattr(owner, name))))
        yield


_METHOD = 16  # B at most of what a request begins with
_SENDING = [(socket.socket, name) for name in ("send", "sendall", "sendmsg")] + [
    (owner, name) for owner in (ssl.SSLSocket, ssl.SSLObject) for name in ("send", "write") if hasattr(owner, name)
]


def _host_of(opened: Any) -> str:
    """Return where a socket leads to; of TLS without one the name that it was opened with."""
    name = getattr(opened, "server_hostname", None)
    with contextlib.suppress(OSError, AttributeError, IndexError, TypeError):
        address = opened.getpeername()
        return str(address[0]) if isinstance(address, tuple) else "localhost"
    return str(name)


def _is_of_script(thread: threading.Thread) -> bool:
    """Return whether a thread runs code of the script, or what it gave an executor; a library's goes on as it is."""
    code = getattr(getattr(thread, "_target", None), "__code__", None)
    kind = sys.modules.get(type(thread).__module__)
    files = [None if code is None else code.co_filename, getattr(kind, "__file__", None)]
    return any(map(is_foreign, files)) or (code is not None and "concurrent" in Path(code.co_filename).parts)


@functools.cache
def _listen() -> None:
    sys.addaudithook(_audit_hook)


def _audit_hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not (_watched or _left):
        return
    refused = (event in _OUTSIDE and _alone) or (event in _PROGRAMS and _watched)
    if refused and threading.current_thread() not in _bystanders:
        raise TimeLimitReached(f"it would start or reach what is outside of it ({event})", None)
    if event not in _PATHS:
        return
    files = _watched[-1] if _watched else _left.get(threading.current_thread())
    if files is None or (event == "open" and not arguments[2] & WRITES):
        return
    for at, folder in _PATHS[event]:
        if not files.is_write_allowed(arguments[at], None if folder is None else arguments[folder]):
            if not _watched:
                raise SystemExit  # the thread ends, without a word
            named = os.fsdecode(arguments[at])
            raise TimeLimitReached(f"it would write to '{named}' by a way that is not answered for ({event})", None)
