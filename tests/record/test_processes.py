"""A script's own process, and the Python processes that it starts: what they see, and how they join the run."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from tests.patience import HANG_S

from stepscope import Run
from stepscope.files import replace_json
from stepscope.liveness import process_identity
from stepscope.record.processes import children
from stepscope.record.processes.children import when_imported
from stepscope.record.processes.training import Orders, claim_writer
from stepscope.record.script import promote_first_part_with_steps, run_script
from stepscope.record.settings import Settings
from stepscope.report.first_screen import render
from stepscope.runfolder import RunReader, RunWriter

SEEN = """
import os, subprocess, sys
code = "import os, sys; print(sorted(k for k in os.environ if 'STEPSCOPE' in k), os.environ.get('PYTHONPATH'), [p for p in sys.path if 'startup' in p])"
out = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env).stdout for env in (None, {**os.environ, "PYTHONPATH": "/somewhere"})]
with open("seen.txt", "w") as file:
    file.write("".join(out) + str(sorted(k for k in os.environ if "STEPSCOPE" in k)) + str("torch" in sys.modules))
"""  # noqa: E501
SPAWN = """
import torch
import torch.multiprocessing as mp

def train(rank):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6 + rank):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""

UNEQUAL = """
import time, torch
import torch.multiprocessing as mp
from pathlib import Path

def sampled():  # ten rows and more of each rank, so that some of them are of both
    sizes = [path.stat().st_size for path in Path(__file__).parent.glob("runs/*/samples/training-*.rows")]
    return len(sizes) == 2 and min(sizes) > 1000

def train(rank):
    held = torch.ones(rank * 20_000_000)  # 80 MB in the second
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while step < 20 or not sampled():
        model(torch.ones(3, 4)).sum().backward()
        time.sleep(0.03)
        optimizer.step()
        step += 1

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


def test_a_script_and_its_children_see_nothing_of_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for ours in ("STEPSCOPE_CEILINGS", "STEPSCOPE_FAULTS"):  # set for the tests
        monkeypatch.delenv(ours, raising=False)
    Path("seen.py").write_text(SEEN)
    _, code = run_script("seen.py", [], Settings(out=tmp_path / "runs"))
    assert code == 0
    assert Path("seen.txt").read_text() == "[] None []\n[] /somewhere []\n[]False"


def test_a_child_that_does_not_train_imports_next_to_nothing_of_us(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "asks.py"
    script.write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import sys; print(*sys.modules)'])"
    )
    run_script(str(script), [], Settings(out=tmp_path / "runs"))
    imported = set(capfd.readouterr().out.split())
    ours = {name for name in imported if name.partition(".")[0] == "stepscope"}
    package = "stepscope.record.processes"
    assert ours == {"stepscope", "stepscope.record", package, f"{package}.children"}
    assert imported.isdisjoint({"typing", "ctypes", "dataclasses", "inspect", "pathlib", "json", "threading"})


def test_a_child_inherits_what_c_knows_of_the_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "puts.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "os.putenv('OF_C', '1')\n"
        'asks = \'import os; print(os.environ.get("OF_C"), os.environ.get("STEPSCOPE_TRAINING"))\'\n'
        "subprocess.run([sys.executable, '-c', asks])\n"
        "print(os.environ.get('STEPSCOPE_TRAINING'))\n"
    )
    run_script(str(script), [], Settings(out=tmp_path / "runs"))
    assert capfd.readouterr().out.split() == ["1", "None", "None"]


def test_a_child_that_another_thread_forks_meanwhile_has_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(children.ORDERS, raising=False)
    seen: list[str] = []

    def fork() -> None:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, str(os.environ.get(children.ORDERS)).encode())
            os._exit(0)
        os.close(writer)
        seen.append(os.read(reader, 100).decode())
        os.close(reader)
        os.waitpid(child, 0)

    def start() -> None:
        assert os.environ[children.ORDERS] == "orders"  # for the child that is started
        other = threading.Thread(target=fork)
        other.start()
        other.join()

    children._joining_spawn(start, "orders")()
    assert seen == ["None"]
    assert children.ORDERS not in os.environ


FORKS = """
import os
child = os.fork()
if child == 0:
    import torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_that_imports_torch_itself_is_not_recorded(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    path, code = run_script(str(script), [], Settings(out=tmp_path / "runs"))
    assert code == 0
    run = RunReader(path)
    assert run.steps.height == 0
    assert "interrupted" not in str(run.status)


def _begun_run(tmp_path: Path, **fields: object) -> Path:
    """A run whose folder belongs to a process without a step, and a part of rank 1 with three."""
    run = RunWriter.create(tmp_path, "net")
    run.update(
        launcher_pid=1, argv=["stepscope", "run", "train.py"], pid=2**22 + 1, clock={"monotonic_ns": 1}, **fields
    )
    run.write_model([{"module": "", "type": "Tried"}])
    run.append_event("no-steps", "no step ended")
    run.append_event("sampler-lost", "ended early")
    kind = {"sensor": "s", "quantity": "rss", "unit": "B", "kind": "gauge", "source": "synthetic"}
    scopes = [{"id": "a", **kind, "scope": "rank:1"}, {"id": "b", **kind, "scope": "children"}]
    replace_json(run.path / "channels.json", {"pid": 5, "channels": scopes})
    run.close("ok")
    part = RunWriter.create_rank(run.path, 1)
    part.update(pid=2**22 + 2, rank=1, world_size=2, clock={"monotonic_ns": 2}, argv=["-c"])
    for number in range(3):
        part.append_step(number, number, number + 1, 8, None, False)
    part.write_model([{"module": "", "type": "Trained"}])
    part.append_event("compiled", "a compiled model")
    part.close("failed", "ValueError")
    return run.path


def test_a_process_that_made_no_step_gives_the_run_to_the_first_part_that_has_steps(tmp_path: Path) -> None:
    path = _begun_run(tmp_path)
    assert promote_first_part_with_steps(path)
    assert not promote_first_part_with_steps(path)
    run = Run(path)
    assert (run.steps.height, run.status, run.meta["rank"], run.meta["pid"]) == (3, "failed", 1, 2**22 + 2)
    assert (run.meta["id"], run.meta["argv"][0], run.meta["launcher_pid"]) == (path.name, "stepscope", 1)
    assert run.meta["clock"] == {"monotonic_ns": 2}
    assert [event["kind"] for event in run.events] == ["sampler-lost", "compiled"]
    assert [channel["scope"] for channel in run.channels] == ["rank:0", "children"]
    assert "Trained" in (path / "model.json").read_text(encoding="utf-8")
    assert not run.damaged_files()
    assert not (path / "ranks").exists()


def test_a_full_disk_takes_nothing_from_a_run_that_was_to_be_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _begun_run(tmp_path)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def full(file: Path, data: bytes) -> int:
        file.touch()
        os.truncate(file, 0)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        promote_first_part_with_steps(path)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_rank_that_failed_before_its_first_step_becomes_a_part(tmp_path: Path) -> None:
    path = _begun_run(tmp_path, rank=0, world_size=2)
    assert promote_first_part_with_steps(path)
    former = RunReader(path / "ranks" / "1")
    assert (former.steps.height, former.status, former.meta["rank"]) == (0, "ok", 0)
    assert former.meta["id"] == f"{path.name}/ranks/1"
    assert "Tried" in (former.path / "model.json").read_text(encoding="utf-8")
    assert Run(path).rank_table()["steps"].to_list() == [3, 0]


def test_a_part_whose_process_still_writes_stays_where_it_is(tmp_path: Path) -> None:
    path = _begun_run(tmp_path)
    RunWriter.attach(path / "ranks" / "1").update(status="running", **process_identity(os.getpid()))
    assert not promote_first_part_with_steps(path)
    assert RunReader(path / "ranks" / "1").steps.height == 3


def test_the_first_rank_of_a_machine_without_rank_0_writes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    path = RunWriter.create(tmp_path, "net").path
    assert claim_writer(path).path == path
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert claim_writer(path).path == path / "ranks" / "5"


@pytest.mark.slow
def test_a_launcher_that_tries_its_model_first_leaves_the_run_to_the_processes_that_train(tmp_path: Path) -> None:
    script = tmp_path / "tries.py"
    script.write_text(SPAWN.replace("    mp.spawn", "    torch.nn.Linear(4, 1)(torch.ones(3, 4))\n    mp.spawn"))
    path, code = run_script(str(script), [], Settings(out=tmp_path / "runs"))
    assert code == 0
    run = Run(path)
    assert run.rank_table()["steps"].to_list() in ([6, 7], [7, 6])
    assert run.rank_table()["peak_memory_bytes"].null_count() == 0
    assert run.status == "ok"


@pytest.mark.slow
def test_processes_that_a_script_spawns_are_parts_of_its_run(tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    path, code = run_script(str(script), [], Settings(out=tmp_path / "runs"))
    assert code == 0
    parts = [RunReader(path), RunReader(path / "ranks" / "1")]
    assert sorted(part.steps.height for part in parts) == [6, 7]
    assert [part.status for part in parts] == ["ok", "ok"]
    assert [part.steps["samples"].to_list()[0] for part in parts] == [3, 3]
    console = Console(width=100)
    with console.capture() as shown:
        console.print(render(Run(path)))
    assert f"2 trained, {parts[0].steps.height}, {parts[1].steps.height} steps" in shown.get()


SERVED = """
import sys
import torch
from multiprocessing import get_context

def train(fails):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6 + fails):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    if fails:
        raise ValueError("nan")

if __name__ == "__main__":
    for fails in (False, True):
        child = get_context("forkserver").Process(target=train, args=(fails,))
        child.start()
        child.join()
"""


@pytest.mark.slow
def test_what_a_child_of_the_fork_server_trains_is_whole_and_has_its_end(tmp_path: Path) -> None:
    script = tmp_path / "served.py"
    script.write_text(SERVED)
    path, _ = run_script(str(script), [], Settings(out=tmp_path / "runs"))
    parts = [RunReader(path), RunReader(path / "ranks" / "1")]
    assert [part.steps.height for part in parts] == [6, 7]
    assert [part.status for part in parts] == ["ok", "failed"]
    assert parts[1].meta["reason"] == "ValueError: nan"


@pytest.mark.slow
def test_memory_and_cpu_time_of_a_run_are_those_of_its_training_processes(tmp_path: Path) -> None:
    script = tmp_path / "unequal.py"
    script.write_text(UNEQUAL)
    path, _ = run_script(str(script), [], Settings(out=tmp_path / "runs"))
    run = Run(path)
    peaks = sorted(run.rank_table()["peak_memory_bytes"].to_list())
    assert peaks[1] - peaks[0] == pytest.approx(80e6, rel=0.2)
    both = run.metrics().filter(metric="peak_memory", scope="processes", source="rss")["value"][0]
    launched = run.metrics().filter(metric="peak_memory", scope="launcher")
    launcher = launched.filter(pl.col("source").is_in(["rss", "peak_rss"]))["value"][0]  # whichever was higher
    assert launcher + sum(peaks) * 0.9 < both < (launcher + sum(peaks)) * 1.1, "Python adds a resource tracker"
    once = run.metrics().filter(metric="peak_memory", scope="processes", source="pss")["value"]
    assert once.is_empty() or once[0] < both
    assert run.rank_table()["cpu_cores"].null_count() == 0
    assert not [entry for entry in run.not_measured() if entry.what.startswith(("memory of", "CPU utilisation of"))]


def test_orders_travel_as_text() -> None:
    orders = Orders(run="/a b/c", name="x", optimizer_steps_per_step=2, module=True)
    assert Orders.from_json(orders.to_json()) == orders


def test_only_commands_that_start_python_are_joined() -> None:
    assert children.starts_joinable_python([sys.executable, "-c", "pass"])
    assert children.starts_joinable_python("/usr/bin/python3.11 train.py")
    assert children.starts_joinable_python(["torchrun", "train.py"])
    assert not children.starts_joinable_python(["ls", "python"])
    assert not children.starts_joinable_python([])
    assert children.starts_joinable_python([sys.executable, "-u", "-W", "-I", "train.py", "-S"])
    assert children.starts_joinable_python([sys.executable, "-cS"])
    for deaf in ("-I", "-S", "-uE", "-XdevI -Ic"):
        assert not children.starts_joinable_python([sys.executable, *deaf.split(), "train.py"]), deaf


@pytest.mark.parametrize("installed", [True, False], ids=["this Python", "one without us"])
@pytest.mark.parametrize("before", [None, "/x"])
def test_a_child_takes_back_what_its_parent_left(installed: bool, before: str | None) -> None:
    program = (
        f"import os, sys\nsys.path.insert(0, {children.STARTUP!r})\n"
        + ("" if installed else "sys.modules['stepscope'] = None\n")
        + "try:\n    import sitecustomize\nexcept ImportError as error:\n    assert error.name == 'sitecustomize'\n"
        "assert 'startup' not in str(sys.modules.get('sitecustomize'))\n"
        f"print([name for name in {[children.ORDERS, children.PYTHONPATH]} if name in os.environ])\n"
        "print(os.environ.get('PYTHONPATH'))"
    )
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    orders = Orders(run="/none", name="x").to_json()
    environ = children.environment(orders, plain if before is None else {**plain, "PYTHONPATH": before})
    command = [sys.executable, "-S", "-c", program]  # -S: nothing has run before
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert ended.stdout == f"[]\n{before}\n"


def test_an_import_is_acted_on_once_and_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before, seen = list(sys.meta_path), []
    when_imported("imported_late", lambda module: seen.append(vars(module)["value"]))
    module = __import__("imported_late")
    assert seen == [3]
    assert sys.meta_path == before
    assert module.__spec__ is not None
    assert type(module.__loader__) is type(module.__spec__.loader)
    assert "stepscope" not in type(module.__loader__).__module__
    when_imported("imported_late", lambda module: seen.append(4))
    assert seen == [3, 4]


def test_an_action_that_fails_does_not_fail_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_badly.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def fails(_module: object) -> None:
        raise RuntimeError("ours")

    when_imported("imported_badly", fails)
    assert __import__("imported_badly").value == 3


def test_a_module_that_is_not_there_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    when_imported("imported_later", lambda module: seen.append(vars(module)["value"]))
    with pytest.raises(ModuleNotFoundError):
        __import__("imported_later")
    (tmp_path / "imported_later.py").write_text("value = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("imported_later")
    assert seen == [5]


def test_a_module_that_is_only_asked_for_is_acted_on_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries ask with find_spec whether torch is there, long before they import it."""
    (tmp_path / "asked_for.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before, seen = list(sys.meta_path), []
    when_imported("asked_for", lambda module: seen.append(vars(module)["value"]))
    for _ in range(2):
        assert importlib.util.find_spec("asked_for") is not None
    assert seen == []
    __import__("asked_for")
    assert seen == [3]
    assert sys.meta_path == before
