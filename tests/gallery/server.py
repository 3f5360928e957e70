"""Runs scripts of the gallery, each in a fork of a process that has imported torch: bare, under `run`, under `profile`.

Usage: python server.py JOBS PARALLEL [MODULE ...]; JOBS is a JSON list of {script, mode, folder, record, memory, fault,
calls, limit_s, switch_s, destructors}. The child ends as the interpreter ends, with the exit code of the script; its
stdout and stderr lie in `folder`, its files in `folder/work`. The modules are imported beforehand, as torch is.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 900.0  # ends what hangs; no machine is so busy that it comes near
COPIED_WITHIN_S = 20.0  # what a script has printed, after its end: a process that it left behind may hold its stdout
STDIN = {"lines": b"line one\nline two\n"}


def directives(script: Path) -> dict[str, list[str]]:
    """What a script needs of its runner: lines `# runner: stdin=lines` below its docstring."""
    found: dict[str, list[str]] = {"stdin": [], "args": [], "env": [], "name": []}
    for line in script.read_text(encoding="utf-8").splitlines():
        if line.startswith("# runner: "):
            kind, _, value = line.removeprefix("# runner: ").partition("=")
            found.setdefault(kind, []).append(value)
    return found


def main() -> dict[str, Any] | None:
    """Start every job; in a child, return its job: the caller runs it at the top of the interpreter."""
    jobs: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    parallel = int(sys.argv[2])
    running: dict[int, tuple[dict[str, Any], float]] = {}
    waiting = list(reversed(jobs))
    copying: set[int] = set()
    ended_s = 0.0
    while waiting or running or (copying and time.monotonic() - ended_s < COPIED_WITHIN_S):
        while waiting and len(running) < parallel:
            job = waiting.pop()
            copies = [_copied_to(Path(job["folder"]) / name) for name in ("stdout", "stderr")]
            writers = [writer for writer, _ in copies]
            copying.update(copy for _, copy in copies)
            child = os.fork()
            if child == 0:
                for descriptor, writer in enumerate(writers, 1):
                    os.dup2(writer, descriptor)
                    os.close(writer)
                child_job: dict[str, Any] = job
                return child_job
            for writer in writers:
                os.close(writer)
            running[child] = job, time.monotonic()
        ended, status = os.waitpid(-1, os.WNOHANG) if running or copying else (0, 0)
        copying.discard(ended)
        if ended in running:
            job, _ = running.pop(ended)
            ended_s = time.monotonic()
            _kill_group(ended)
            (Path(job["folder"]) / "status").write_text(str(os.waitstatus_to_exitcode(status)), encoding="utf-8")
            continue
        for child, (job, since) in list(running.items()):
            if time.monotonic() - since > job.get("limit_s", TIMEOUT_S):
                (Path(job["folder"]) / "timeout").touch()
                _kill_group(child)
        time.sleep(0.005)
    return None


def _copied_to(file: Path) -> tuple[int, int]:
    """A pipe, and the process that copies its other end into a file; spawned, since a fork of torch takes longer."""
    reader, writer = os.pipe()
    kept = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    ends = [(os.POSIX_SPAWN_DUP2, reader, 0), (os.POSIX_SPAWN_DUP2, kept, 1)]
    copy = os.posix_spawnp("cat", ["cat"], os.environ, file_actions=ends)
    os.close(reader)
    os.close(kept)
    return writer, copy


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, 9)
    except OSError:
        return


def begin(job: dict[str, Any]) -> tuple[str, list[str]]:
    """Make this process look as if it had been started for this script; (script, its arguments)."""
    os.setsid()
    script, folder = Path(job["script"]), Path(job["folder"])
    needs = directives(script)
    work = folder / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    text = b"".join(STDIN[name] for name in needs["stdin"])
    (folder / "stdin").write_bytes(text)
    opened = os.open(folder / "stdin", os.O_RDONLY)
    os.dup2(opened, 0)
    os.close(opened)
    for value in needs["env"]:
        key, _, text_value = value.partition("=")
        os.environ[key] = text_value
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "switch_s" in job:
        sys.setswitchinterval(job["switch_s"])
    for name in needs["name"]:  # the same file under another name
        script = Path(shutil.copyfile(script, folder / name))
    return str(script), [word for value in needs["args"] for word in value.split()]


def run_bare(script: str, arguments: list[str]) -> None:
    """As `python script` does it."""
    from importlib.machinery import SourceFileLoader

    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    main_module = sys.modules["__main__"]
    builtins = vars(main_module)["__builtins__"]
    code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    vars(main_module).clear()
    vars(main_module).update(
        __name__="__main__", __builtins__=builtins, __doc__=None, __package__=None, __spec__=None, __annotations__={},
        __loader__=SourceFileLoader("__main__", script), __file__=script, __cached__=None,
    )  # fmt: skip
    exec(code, vars(main_module))


def out_of(script: str) -> str:
    """Where the run lies: where it does by default for scripts about that folder, else where no script looks."""
    about = ("audit", "runs", "folder", "chdir", "umask", "few_file", "file_size")
    return "runs" if any(word in Path(script).stem for word in about) else "../out"


def set_up_products() -> None:
    """Multiply once: one of 10,928 processes whose threads made their first products at once had another result."""
    import torch

    ones = torch.ones(16, 16)
    torch.nn.functional.linear(ones, ones, ones[0]).matmul(ones).tanh()


def break_or_note(job: dict[str, Any]) -> None:
    """Let a function of ours raise from now on, or note which of them are called."""
    if job.get("fault") or job.get("calls"):
        from faults import inject, note_calls  # type: ignore[import-not-found]

        note_calls(Path(job["calls"])) if job.get("calls") else inject(job["fault"])


def run_measured(script: str, arguments: list[str], job: dict[str, Any]) -> None:
    """What `stepscope run` starts in the process of the script; the run folder lies where it does by default."""
    from stepscope.record.processes.training import Orders, run_target
    from stepscope.runfolder import RunWriter

    name = Path(script).stem
    writer = RunWriter.create(out_of(script), name)
    orders = Orders(run=str(writer.path), name=name, record=job["record"], memory=job["memory"]).to_json()
    break_or_note(job)
    del sys.path[0]
    run_target(orders, script, arguments)


def run_commanded(script: str, arguments: list[str], job: dict[str, Any]) -> None:
    """The whole command: this process is the one that starts the script in another."""
    from stepscope.__main__ import main as command

    break_or_note(job)
    sys.exit(command(["run", "-q", "--out", out_of(script), script, *arguments]))


def run_scoped(script: str, arguments: list[str], job: dict[str, Any]) -> None:
    """A script that profiles itself where it is asked to."""
    importlib.import_module("stepscope")
    os.environ["PROFILED"] = "1"
    break_or_note(job)
    run_bare(script, arguments)


def run_profiled(script: str, arguments: list[str], job: dict[str, Any]) -> None:
    """The same loop within `stepscope.profile`; its sampler is the real one."""
    import stepscope

    break_or_note(job)
    scope = stepscope.profile(steps="optimizer", out=out_of(script), record=job["record"], memory=job["memory"])
    scope.__enter__()  # closed as a loop without `with` is: when the interpreter ends
    run_bare(script, arguments)


if __name__ == "__main__":
    import ending  # type: ignore[import-not-found]  # first: it is to be the last at the end

    for name in ("numpy", "torch", "torch._dynamo", *sys.argv[3:]):  # once, for all of them
        importlib.import_module(name)
    set_up_products()
    gc.collect()
    gc.freeze()  # what forks share stays shared, and the end of one does not visit it
    this = main()
    if this is not None:
        target, words = begin(this)
        if not this.get("destructors"):
            ending.spare_libraries()
        ending.note_modules(str(Path(this["folder"]) / "modules"))
        if this["mode"] == "bare":
            run_bare(target, words)
        elif this["mode"] == "run":
            run_measured(target, words, this)
        elif this["mode"] == "command":
            run_commanded(target, words, this)
        elif this["mode"] == "scoped":
            run_scoped(target, words, this)
        else:
            run_profiled(target, words, this)
