"""Allocators: what is in force, what a child gets, what is missing, and the trade between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.errors import MissingDependency, StepscopeError, UnknownName, UsageError
from stepscope.record import c_allocators, empty_process
from stepscope.record.dry.allocator_costs import compare_allocators, cost_as_json_line, measured_steps

glibc = pytest.mark.skipif(c_allocators.current_allocator_facts()["library"] is None, reason="needs glibc")
_SAYS = (
    "import json; from stepscope.record import c_allocators as a; {}; print(json.dumps(a.current_allocator_facts()))"
)


def said_by_child(code: str, **environment: str) -> dict[str, object]:
    ended = subprocess.run(
        [sys.executable, "-c", _SAYS.format(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    said: dict[str, object] = json.loads(ended.stdout)
    return said


def installed_tcmalloc(root: Path, name: str = "libtcmalloc_minimal.so.4.5.10") -> Path:
    path = root / "usr/lib/x86_64-linux-gnu" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


@glibc
def test_a_pinned_threshold_is_stated_by_the_process_that_pinned_it() -> None:
    assert said_by_child("pass", GLIBC_TUNABLES="")["name"] == "default"
    pinned = said_by_child("a.use_allocator('pinned')")
    assert (pinned["name"], pinned["mmap_threshold"]) == ("pinned", 65536)


@glibc
def test_a_pinned_threshold_gives_freed_memory_back_at_once() -> None:
    """Two blocks of 1 MB, the lower one freed first: unless pinned the second pair stays in the heap."""
    code = """
import ctypes
from stepscope.record import c_allocators
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
{}
read = c_allocators.reserved_reader()
libc.free(libc.malloc(8 << 20))  # raises the threshold of an unpinned malloc to 8 MB
before = read()
blocks = [libc.malloc(4 << 20) for _ in range(4)]
for block in blocks[:3]:
    libc.free(block)
print(read() - before)
"""
    sizes = []
    for pin in ("", "c_allocators.pin_mmap_threshold()"):
        command = [sys.executable, "-c", code.format(pin)]
        environment = c_allocators.child_environment("default")
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        sizes.append(int(ended.stdout))
    loose, pinned = sizes
    assert pinned < 5 << 20 < 15 << 20 < loose


def test_a_child_gets_its_allocator_and_keeps_the_rest_of_its_environment(tmp_path: Path) -> None:
    library = installed_tcmalloc(tmp_path)
    inherited = {"A": "1", "LD_PRELOAD": "libx.so:/old/libtcmalloc.so.4", "GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}
    pinned = c_allocators.child_environment("pinned", tmp_path, inherited)
    assert pinned["LD_PRELOAD"] == "libx.so"
    assert pinned["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=65536"
    preloaded = c_allocators.child_environment("tcmalloc", tmp_path, {**inherited, **pinned})
    assert preloaded["LD_PRELOAD"] == f"{library}:libx.so"
    assert preloaded["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1"
    assert c_allocators.child_environment("default", tmp_path, {"A": "1"}) == {"A": "1"}


def test_the_minimal_tcmalloc_is_taken_before_the_full_one(tmp_path: Path) -> None:
    installed_tcmalloc(tmp_path, "libtcmalloc.so.4")
    minimal = installed_tcmalloc(tmp_path)
    assert c_allocators.tcmalloc_library(tmp_path) == minimal


def test_a_tcmalloc_that_is_not_there_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="tcmalloc is not installed") as caught:
        c_allocators.use_allocator("tcmalloc", tmp_path)
    assert "libtcmalloc-minimal4" in (caught.value.hint or "")


def test_an_unknown_allocator_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        c_allocators.use_allocator("tcmaloc")
    assert "did you mean tcmalloc?" in (caught.value.hint or "")


def test_the_process_starts_anew_with_the_library_before_it_and_never_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = installed_tcmalloc(tmp_path)
    started: list[tuple[list[str], dict[str, str]]] = []

    def exec_instead(_path: str, arguments: list[str], environment: dict[str, str]) -> None:
        started.append((arguments, environment))

    monkeypatch.setattr(os, "execve", exec_instead)
    c_allocators.use_allocator("tcmalloc", tmp_path)
    ((arguments, environment),) = started
    assert arguments == [sys.executable, *sys.orig_argv[1:]]
    assert environment["LD_PRELOAD"].split(":")[0] == str(library)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(UsageError, match="does not load"):
        c_allocators.use_allocator("tcmalloc", tmp_path)


def test_a_loaded_tcmalloc_is_seen_in_the_maps_of_the_process() -> None:
    path = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4.5.10"
    maps = f"7f00-7f01 r-xp 00000000 08:01 42    {path}\n7f02-7f03 rw-p 00000000 00:00 0 \n"
    assert c_allocators.tcmalloc_in(maps) == path
    assert c_allocators.tcmalloc_in("7f02-7f03 rw-p 00000000 00:00 0 [heap]\n") is None


def test_steps_are_measured_and_reported_as_the_trade_reads_them() -> None:
    cost = measured_steps(lambda: None, 3)
    assert cost.peak_bytes >= cost.before_bytes > 1_000_000
    assert json.loads(cost_as_json_line(cost))["peak_bytes"] == cost.peak_bytes


def child(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_the_trade_has_the_median_and_the_spread_of_each_allocator() -> None:
    pinned = "'mmap_threshold' in os.environ.get('GLIBC_TUNABLES', '')"
    code = (
        f"import os; pinned = {pinned}\n"
        'print(\'{"before_bytes": 1, "peak_bytes": %d, "step_s": %f}\' % (80 if pinned else 100, 1.5 if pinned else 1))'
    )
    default, pin = compare_allocators(child(code), ("default", "pinned"), rounds=2)
    assert (default.allocator, default.peak_bytes, default.step_s, default.missing) == ("default", 100, 1.0, None)
    assert (pin.peak_bytes, pin.peak_low, pin.peak_high, pin.step_s) == (80, 80, 80, 1.5)


def test_an_allocator_that_is_missing_is_a_result_with_a_reason(tmp_path: Path) -> None:
    code = 'print(\'{"before_bytes": 1, "peak_bytes": 5, "step_s": 0.1}\')'
    default, missing = compare_allocators(child(code), ("default", "tcmalloc"), rounds=1, root=tmp_path)
    assert default.peak_bytes == 5
    assert missing.peak_bytes is None
    assert "not installed" in (missing.missing or "")
    assert "apt install" in (missing.missing or "")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no such layer')", "exit code 1.*no such layer"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed, most likely for memory"),
        ("print('hello')", "exit code 0"),
    ],
)
def test_a_step_that_fails_by_default_fails_the_trade_with_its_own_words(code: str, message: str) -> None:
    with pytest.raises(StepscopeError, match=message):
        compare_allocators(child(code), ("default",), rounds=1)


def test_a_command_that_cannot_be_started_says_so() -> None:
    with pytest.raises(MissingDependency, match="cannot be started"):
        compare_allocators(["/nowhere/python"], ("default",), rounds=1)


def _resident(cache: Path) -> int | None:
    figures = empty_process.empty_process(cache=cache)
    return None if figures is None else figures.resident


def test_an_empty_process_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty_process, "_PROGRAM", "print('{\"resident\": 321000000}')")
    assert empty_process.cached_empty_process("default", cache=tmp_path) is None
    assert _resident(tmp_path) == 321_000_000
    monkeypatch.setattr(empty_process, "_PROGRAM", "raise SystemExit('measured twice')")
    assert _resident(tmp_path) == 321_000_000
    assert empty_process.empty_process("pinned", cache=tmp_path) is None  # another allocator is another number


@pytest.mark.parametrize("content", ["", "[]", '{"default": "many"}', "\x00"])
def test_a_damaged_cache_is_measured_anew(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stepscope").mkdir()
    (tmp_path / "stepscope/empty_process.json").write_text(content)
    monkeypatch.setattr(empty_process, "_PROGRAM", "print('{\"resident\": 1000}')")
    assert _resident(tmp_path) == 1000
