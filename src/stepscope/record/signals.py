"""Signals of the process that started a script are the script's: each reaches it once.

Ctrl-C, `kill %1`, `timeout`, a closing terminal and service managers tell all processes of a group, the script among
them; others tell this process alone. No signal says which it was, so a witness that does nothing else is in the group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_WITNESS = Path(__file__).parent / "processes" / "witness.py"
_NAMES = "INT QUIT WINCH TERM HUP USR1 USR2 ALRM VTALRM PROF IO URG PWR"
_PASSED_ON = (
    *(getattr(signal, f"SIG{name}") for name in _NAMES.split() if hasattr(signal, f"SIG{name}")),
    *(range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()),
)
_SETTLED_S = 0.05  # within it whoever signals one process after another has told them all
_ANSWERED_S = 5.0


@contextlib.contextmanager
def signals_passed_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass each signal that this process gets on to the child, unless the child has got it by itself."""
    if threading.get_ident() != threading.main_thread().ident:
        yield
        return
    incoming, woken = os.pipe()
    os.set_blocking(woken, False)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    witness: subprocess.Popen[bytes] | None = None
    try:
        with contextlib.suppress(OSError):  # no process is left, or no memory: it goes without
            witness = _started_witness(child)
        thread = threading.Thread(target=_pass_on, args=(incoming, child, witness), daemon=True)
        thread.start()
        woken_before = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in _PASSED_ON}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken_before)
        os.close(woken)
        if witness is not None:
            witness.kill()
        thread.join()
        os.close(incoming)
        if witness is not None:
            witness.communicate()  # waits, and closes its pipes


def _started_witness(child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Start the witness, with the words of the script: `pkill -f train.py` is to tell it too."""
    words = [str(word) for word in child.args[1:]] if isinstance(child.args, list) else []
    command = [sys.executable, "-I", "-S", str(_WITNESS), *words]
    return subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def _pass_on(incoming: int, child: subprocess.Popen[bytes], witness: subprocess.Popen[bytes] | None) -> None:
    while first := os.read(incoming, 1):
        time.sleep(_SETTLED_S)
        more = os.read(incoming, 512) if select.select([incoming], (), (), 0)[0] else b""
        for number in dict.fromkeys(first + more):
            with contextlib.suppress(OSError):  # the child has ended
                if not _did_witness_get_signal(witness, number) or os.getpgid(child.pid) != os.getpgrp():
                    child.send_signal(number)


def _did_witness_get_signal(witness: subprocess.Popen[bytes] | None, number: int) -> bool:
    """Return whether the witness got a signal too; one that does not answer is asked no more.

    Without a witness those that terminals send are taken to have reached all.
    """
    if witness is None:
        return number in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)
    assert witness.stdin is not None
    assert witness.stdout is not None
    try:
        witness.stdin.write(bytes([number]))
        if select.select([witness.stdout], (), (), _ANSWERED_S)[0]:
            return witness.stdout.read(1) == b"1"
        witness.kill()
    except OSError:
        pass
    return False
