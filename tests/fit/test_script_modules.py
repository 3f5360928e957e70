"""`stepscope fit -m package.train`: a module is followed as `python -m` runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fit import jobs
from tests.patience import HANG_S

import stepscope
from stepscope.__main__ import main
from stepscope.analysis.memory.limits import limit_of_memory
from stepscope.api.requests import FitRequest
from stepscope.errors import StepscopeError, UsageError
from stepscope.footprint.prediction import predict_script_fit
from stepscope.footprint.prediction_trials import AllocatorTrade
from stepscope.footprint.result import FitResult
from stepscope.footprint.script import ScriptLog, dry_run_script
from stepscope.footprint.simulator import live_peak
from stepscope.record.dry.storage_log import nothing_hidden
from stepscope.request import parameters

TRAIN = """
import json, sys
import torch
from torch import nn
from {parts} import width
def train():
    model = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 3))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(32, 20)), torch.zeros(32, dtype=torch.long)).backward()
        optimizer.step()
"""
SEEN = """
import os, sys
names = {name: globals()[name] for name in ("__name__", "__file__", "__package__", "__doc__", "__cached__")}
spec = (__spec__.name, __spec__.parent, __spec__.origin)
same = __import__("__main__").__spec__ is __spec__, __loader__.get_filename() == __file__
print(json.dumps([names, spec, sys.argv, sys.path[0], os.getcwd(), same]))
"""
STARTS_ITSELF = "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'packaged.train'])\n"
AS_MAIN = "if __name__ == '__main__':\n    train()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "packaged"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nfirst = sys.argv[0]\n")
    (package / "parts.py").write_text("width = 200\n")
    (package / "train.py").write_text(TRAIN.format(parts=".parts") + AS_MAIN)
    (tmp_path / "parts.py").write_text("width = 200\n")
    (tmp_path / "script.py").write_text(TRAIN.format(parts="parts") + AS_MAIN)
    return tmp_path


def followed(name: str, *arguments: str) -> ScriptLog:
    return dry_run_script(name, arguments, nothing_hidden, module=True)


def predicted(target: str, module: bool) -> FitResult:
    environment = jobs.MEASURED.environment
    return predict_script_fit(target, [], limit_of_memory("8GB"), "pinned", lambda _: environment, module=module)


def test_a_module_with_relative_imports_has_the_answer_of_the_same_script() -> None:
    of_module, of_script = predicted("packaged.train", True), predicted("script.py", False)
    assert (of_module.name, of_script.name) == ("packaged.train", "script")
    figures = [(found.peak_bytes, found.verdict, found.unsure, found.ops) for found in (of_module, of_script)]
    assert figures[0] == figures[1]
    assert of_module.live.breakdown == of_script.live.breakdown


@pytest.mark.parametrize(
    ("name", "file"), [("packaged.seen", "packaged/seen.py"), ("packaged.main", "packaged/main/__main__.py"),
                       ("folder.inner.seen", "folder/inner/seen.py"), ("alone", "alone.py")]
)  # fmt: skip
def test_a_module_sees_what_python_m_shows_it(
    name: str, file: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(f'"""Text of it."""\nimport json\nfrom parts import width\n{SEEN}')
    arguments = ("--memory", "8GB", "two words", "-m", "", "--", "--json")
    plain = subprocess.run(
        [sys.executable, "-m", name, *arguments], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    with pytest.raises(UsageError, match="without an optimizer step"):
        followed(name, *arguments)
    assert json.loads(capfd.readouterr().err.splitlines()[-1]) == json.loads(plain.stdout)


def test_while_its_package_is_imported_the_command_is_named_as_python_names_it(folder: Path) -> None:
    (folder / "packaged/train.py").write_text("from . import first\nassert first == '-m', first\n")
    with pytest.raises(UsageError, match="without an optimizer step"):
        followed("packaged.train")


def test_a_module_that_its_package_imports_runs_once_more_as_with_python(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "packaged/__init__.py").write_text("from .train import train\n")
    (folder / "packaged/train.py").write_text(TRAIN.format(parts=".parts") + "print('as', __name__)\n" + AS_MAIN)
    assert followed("packaged.train").missed == ()
    assert [line for line in capfd.readouterr().err.splitlines() if line.startswith("as ")] == [
        "as packaged.train",
        "as __main__",
    ]


def test_a_package_that_is_a_link_has_its_own_modules(folder: Path) -> None:
    (folder / "packaged").rename(folder / "version2")
    (folder / "packaged").symlink_to(folder / "version2")
    watched = followed("packaged.train")
    assert (watched.stopped, watched.missed) == (None, ())
    assert not {name for name in watched.imports if name.startswith("packaged")}


def test_nothing_of_a_module_stays_in_the_process_that_followed_it(folder: Path) -> None:
    (folder / "bare").mkdir()
    (folder / "bare/parts.py").write_text("width = 4\n")
    (folder / "bare/train.py").write_text("from bare import parts\n" + TRAIN.format(parts="packaged.parts") + AS_MAIN)
    before = list(sys.path), list(sys.argv), sys.modules["__main__"]
    for _ in range(2):
        assert followed("bare.train").stopped is None
        assert (list(sys.path), list(sys.argv), sys.modules["__main__"]) == before
        assert not [name for name in sys.modules if name.partition(".")[0] in ("bare", "packaged", "parts")]


def test_a_package_on_the_path_of_python_is_found_and_its_own_modules_are_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "src").mkdir()
    (folder / "packaged").rename(folder / "src/elsewhere")
    with pytest.raises(UsageError, match=r"no module 'elsewhere\.train'") as refused:
        followed("elsewhere.train")
    assert refused.value.hint == "it is below src: PYTHONPATH=src before the command"
    monkeypatch.syspath_prepend(str(folder / "src"))
    watched = followed("elsewhere.train")
    assert (watched.stopped, watched.missed) == (None, ())
    assert not {name for name in watched.imports if name.startswith(("elsewhere", "parts"))}


def test_loops_in_modules_beside_it_are_followed_as_its_own(folder: Path) -> None:
    loop = "def fit(update):\n    for step in range(100_000):\n        update()\n    return step\n"
    (folder / "packaged/engine.py").write_text(loop)
    body = "    model = nn.Linear(20, width)\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    body += "    def update():\n        model(torch.randn(8, 20)).sum().backward()\n        optimizer.step()\n"
    head = TRAIN.format(parts=".parts").partition("    model")[0]
    (folder / "packaged/train.py").write_text(
        f"{head}    from .engine import fit\n{body}    assert fit(update) == 99_999\ntrain()\n"
    )
    assert followed("packaged.train").missed == ()


def test_a_package_that_trains_as_it_is_imported_by_its_module_is_followed(folder: Path) -> None:
    (folder / "packaged/__init__.py").write_text(TRAIN.format(parts=".parts") + "train()\n")
    (folder / "packaged/train.py").write_text("")
    log = followed("packaged.train").log
    assert live_peak(log).bytes > 200 * 20 * 4 * 4


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("packaged.trian", "there is no module 'packaged.trian' here", "did you mean -m packaged.train?"),
        ("packagd", "there is no module 'packagd' here", "run in the folder that holds packagd"),
        ("scirpt", "there is no module 'scirpt' here", "did you mean -m script?"),
        ("nowhere.train", "there is no module 'nowhere.train' here", "run in the folder that holds nowhere"),
        ("script.train", "there is no module 'script.train' here", "'script' is a module and no package: -m script"),
        ("packaged", "'packaged' is a package without a __main__.py", "-m packaged.parts, -m packaged.train"),
        ("plain", "'plain' is a folder without a __main__.py", "name the module that trains"),
        ("packaged/train.py", "'packaged/train.py' is a file", "-m packaged.train, or the file without -m"),
        ("./script.py", "'./script.py' is a file", "-m script, or the file without -m"),
        ("script:train", "'script:train' is no name of a module", "leave out -m: it is a function"),
        ("..train", "'..train' is no name of a module", "-m package.train"),
        ("", "'' is no name of a module", "-m package.train"),
        ("sys", "the module 'sys' is built into Python", "name the module that trains"),
        ("torch._C", "the module 'torch._C' is an extension", "name the module that trains"),
        ("zipped", "the module 'zipped' has no source file", "unpack its archive"),
        ("compiled", "the module 'compiled' has no source file", "install its source"),
        ("torch.distributed.run", "starts the training in other processes", "WORLD_SIZE=1 stepscope fit train.py"),
    ],
)
def test_what_is_no_module_to_follow_is_refused_with_what_to_type(
    name: str, text: str, hint: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plain").mkdir()
    if name == "zipped":
        subprocess.run([sys.executable, "-m", "zipfile", "-c", "zipped.zip", "parts.py"], check=True, timeout=HANG_S)
        monkeypatch.syspath_prepend(str(folder / "zipped.zip"))
        name, text = "parts", text.replace("zipped", "parts")
        (folder / "parts.py").unlink()
    if name == "compiled":
        import py_compile

        py_compile.compile("parts.py", "compiled.pyc")
    with pytest.raises(UsageError) as refused:
        followed(name)
    assert text in str(refused.value)
    assert hint in str(refused.value.hint)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("body", "text", "hint"),
    [
        ("import no_such_library\n", "line 1: ModuleNotFoundError", "python -m packaged.train shows it in full"),
        ("import sys\nsys.exit(3)\n", "left with 3 before it trained", "stepscope fit -m packaged.train --epochs 1"),
        ("input()\n", "EOFError", "stepscope fit -m packaged.train < FILE"),
        ("import os\nos.environ['RANK']\n", "KeyError", "WORLD_SIZE=1 stepscope fit -m packaged.train"),
        (STARTS_ITSELF, "it starts itself, or a training, in another process", "give it less to do"),
    ],
)
def test_a_module_that_fails_is_named_as_it_is_to_be_typed(
    body: str, text: str, hint: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/null").open(encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        monkeypatch.delenv("RANK", raising=False)
        (folder / "packaged/train.py").write_text(body)
        with pytest.raises(StepscopeError) as failed:
            followed("packaged.train")
    assert "'packaged.train'" in str(failed.value)
    assert text in str(failed.value)
    assert hint in str(failed.value.hint)


def test_a_script_that_is_a_module_is_told_by_which_name_it_can_be_followed(folder: Path) -> None:
    with pytest.raises(StepscopeError, match="relative import") as failed:
        dry_run_script("packaged/train.py", [], nothing_hidden)
    assert failed.value.hint == "it is a module of a package: stepscope fit -m packaged.train"
    (folder / "packaged/deep").mkdir()
    (folder / "packaged/deep/__init__.py").write_text("")
    (folder / "packaged/deep/__main__.py").write_text("from . import parts\n")
    with pytest.raises(StepscopeError, match="relative import") as failed:
        dry_run_script("packaged/deep/__main__.py", [], nothing_hidden)
    assert failed.value.hint == "it is a module of a package: stepscope fit -m packaged.deep"


@pytest.mark.parametrize("command", ["fit", "tune", "run"])
def test_a_module_that_is_taken_for_a_workload_is_told_to_need_m(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, file in (("packaged.train", "packaged/train.py"), ("script", "script.py")):
        assert main([command, name]) == 2
        said = capsys.readouterr().err
        assert f"'{name}' is a module, and neither a workload nor a script" in said
        assert f"hint: stepscope {command} -m {name}, or its file: stepscope {command} {file}" in said
    assert main([command, "packaged.trian"]) == 2
    assert "unknown workload 'packaged.trian'" in capsys.readouterr().err


def test_on_the_command_line_options_behind_a_module_are_its_own_also_m_itself(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = "assert sys.argv[1:] == ['-m', 'resnet', '--module', '--width', '3', '--memory', '4GB'], sys.argv\n"
    (folder / "packaged/train.py").write_text(TRAIN.format(parts=".parts") + noted + AS_MAIN)
    (folder / "script.py").write_text(TRAIN.format(parts="parts") + noted + AS_MAIN)
    words = ["-m", "resnet", "--module", "--memory", "8GB", "--width", "3", "--", "--memory", "4GB"]
    peaks = []
    for target in (["-m", "packaged.train"], ["--module", "packaged.train"], ["script.py"]):
        assert main(["fit", "--json", "--no-options", *target, *words]) == 0
        found = json.loads(capsys.readouterr().out)
        peaks.append((found["verdict"], found["limit"]["bytes"], found["live"]["bytes"]))
        assert found["name"] == target[-1].removesuffix(".py")
    assert peaks == [("fits", 8_000_000_000, peaks[0][2])] * 3


def test_letters_of_ours_in_joined_options_of_a_script_stay_the_scripts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = "assert sys.argv[1:] == ['-env', 'CartPole', '-mvit', '-hp', '-0.5', '-vh', '-qx'], sys.argv\n"
    (folder / "script.py").write_text(TRAIN.format(parts="parts") + noted + AS_MAIN)
    words = ["-env", "CartPole", "-mvit", "--memory", "8GB", "-hp", "-0.5", "-vh", "--", "-qx"]
    assert main(["fit", "--json", "--no-options", "script.py", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["limit"]["bytes"]) == ("fits", 8_000_000_000)
    assert answer["options"] == []  # as was asked for


def test_what_a_module_decides_itself_and_what_is_no_module_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        ("-m packaged.train --batch 3", "a script chooses that itself: --batch"),
        ("-m packaged.trian", "did you mean -m packaged.train?"),
        ("-m", "stepscope fit needs TARGET"),
    ):
        assert main(["fit", *words.split()]) == 2
        assert said in capsys.readouterr().err


def test_from_python_a_module_is_asked_for_by_name() -> None:
    found = stepscope.fit_script("packaged.train", module=True, memory="8GB")
    assert (found.name, found.verdict) == ("packaged.train", "fits")
    assert parameters(FitRequest)["module"].type is bool


SPAWNS = """
import multiprocessing, sys
import torch
from torch import nn
from .parts import width
def work(queue):
    queue.put((width, __name__, sys.argv[1:]))
if __name__ == "__main__":
    assert (__package__, __spec__.name) == ("packaged", "packaged.train")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == (200, "__mp_main__", ["--end", "a b"])
    process.join()
    assert process.exitcode == 0
    model = nn.Linear(20, width)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1000):
        model(torch.randn(8, 20)).sum().backward()
        optimizer.step()
        assert step < 12, "it ran on"
"""


def test_real_steps_of_a_module_are_measured_also_where_it_spawns_workers_that_import_it_again(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepscope.footprint.real_steps import RealSteps

    (folder / "packaged/train.py").write_text(SPAWNS)
    command = RealSteps("packaged.train", arguments=("--end", "a b"), module=True).command(3)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["cpu_s"]) == 3


def test_allocators_are_tried_on_the_real_steps_of_the_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[Sequence[str]] = []

    def trades(command: Sequence[str], *_given: object, **_options: object) -> list[AllocatorTrade]:
        commands.append(command)
        return []

    monkeypatch.setattr("stepscope.footprint.prediction_trials.trade_allocators", trades)
    assert main(["fit", "--json", "--allocators", "-m", "packaged.train", "--width", "two words"]) == 0
    orders = json.loads(commands[0][3])
    assert (orders["target"], orders["module"], orders["arguments"]) == (
        "packaged.train",
        True,
        ["--width", "two words"],
    )
    assert json.loads(capsys.readouterr().out)["name"] == "packaged.train"
