"""Scripts that must behave under Stepscope as without it: stdout, exit code, exception, files, and what they print of
their weights. They were written from the issue and the docs, by somebody who had not read the code.

Every script runs bare, under `stepscope run` and within `stepscope.profile`; some of them with a fault in each of our
own functions in turn: those that a training's process loads, and those of the command that starts it (faults.py).
Where time is limited (`TESTS_UNTIL`, in CI) a third of the scripts, more than a hundred, run within `profile`, since a
sampler takes as long to start as a script, and a sixth of the faults is drawn, each day another one.

truth.json states the steps and samples of scripts whose number of steps is certain, by what the script does and by what
docs/measuring.md calls a step; `counted` is what a run has instead, and `why`; `said` is the kind of a note
that it makes. A script whose process or disk ends too early loses what was not flushed (`unflushed`), but for the
warm-up and the step after it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from tests.gallery.faults import COMMAND, DOORS, EMPTY, MODULES, STARTS, places
from tests.gallery.jobs import HERE, MODES, RECORDS, SAME, SCRIPTS, TRUTH, Job, Results, job, run_jobs

from stepscope.record.plan import WARMUP_STEPS

FAULTY = ("early_stopping_restores_best_state", "dataloader_no_workers_shuffled", "gan_two_optimizers",
          "hand_written_sgd_by_data", "lbfgs_closure", "ends_by_uncaught_own_exception",
          "wgan_five_critic_updates_with_gradient_penalty", "swap_tensors_and_lora_in_mid_training",
          "recipe_of_all_that_is_usual")  # fmt: skip
SELDOM = ("detection_collate_of_lists", "anomaly_detection_and_deterministic", "newton_by_func_hessian",
          "checkpoints_within_saved_tensor_hooks", "exception_identity_and_context", "arguments_and_names",
          "forks_while_threads_train", "timeouts_by_alarm_ten_times",
          "own_profilers_one_after_another_while_threads_train", "spawn_trainer_by_torch_multiprocessing",
          "recursive_tree_module_with_raised_limit", "lbfgs_strong_wolfe_rnn_many_operations",
          "three_thousand_modules", "compile_disabled_part_and_explain",
          "model_compile_method_in_place")  # fmt: skip # call what none of those above does
RACY = ("threads_train_at_once", "threads_make_and_drop_models", "threads_with_large_products_update_by_hand",
        "threads_swap_parameters_while_training", "threads_free_and_refill_storages", "timeouts_by_alarm_ten_times",
        "own_profilers_one_after_another_while_threads_train", "own_profiler_in_a_thread_with_a_schedule")  # fmt: skip
AGAIN = 1  # time more, with threads that take quick turns; benchmarks.gallery_stress: as often as is asked for
SWITCH_S = 20e-6  # threads take turns so often there
FLUSHED = WARMUP_STEPS + 1  # steps that are on the disk however soon a script is killed after them
DESTRUCTORS_EVERY = 5  # a measured script in so many ends with torch's own, a fourth of what it takes
PARALLEL = 6  # on two cores: who waits for a sampler leaves its core to the next
# .ci/run has a limit of time, and machines of one kind differ by a factor of two.
LIMITED = "TESTS_UNTIL" in os.environ
WHOLE_S = 900  # that all of it takes on two cores
LATE = time.time() > float(os.environ.get("TESTS_UNTIL", "inf")) - WHOLE_S
TIMELY = pytest.mark.skipif(LATE, reason="no time is left: make test runs it")
CHOSEN = list(enumerate(SCRIPTS))[:: 5 if LATE else 1]
CASES = [
    (script.stem, mode)
    for number, script in CHOSEN
    for mode in MODES
    if mode == "run" or not LIMITED or number // len(RECORDS) % 3 == 0  # each choice of what is recorded is there
]
PARTS = 6  # of the faults, one each day where time is limited
DAY = int(float(os.environ.get("TESTS_UNTIL", "0")) // 86_400)
FAULTS = [
    place for place in places() if place not in DOORS and not (LIMITED and (zlib.crc32(place.encode()) + DAY) % PARTS)
]
TRAINED = [f"stepscope.{name}" for name in MODULES]  # imported once for all: as a training's process has them
IMPORTED = [*TRAINED, *(f"stepscope.{name}" for name in COMMAND)]
# Ways to come to a function: a script, how it is started, and what is recorded; of the first ones each has its turn.
Way = tuple[str, str, int]
TURNS: list[Way] = [(script, "run", number) for script in FAULTY for number in (2, 0)]
LATER: list[Way] = [(script, "run", number) for script in SELDOM for number in (2, 0)]
PROFILED: list[Way] = [(script, "profile", 2) for script in (FAULTY[1], FAULTY[2], FAULTY[5])]
SCOPED: Way = ("scoped", "scoped", 2)
COMMANDED: Way = ("no_torch_at_all", "command", 0)
BY_SIGNAL: Way = ("timeouts_by_alarm_ten_times", "run", 2)  # a boundary is there for those
TWICE = ("profile", "session", "torch_recorder", "torch_hooks", "boundary", "settings", "framework", "sampler.process")
PURPOSE = "a fault of ours, on purpose"


def _way_job(folder: Path, way: Way, name: str, **what: str) -> Job:
    script, mode, number = way
    return job(folder, _path(script), mode, number, name, **what)


def _path(script: str) -> Path:
    return HERE / "scoped.py" if script == SCOPED[0] else HERE / "scripts" / f"{script}.py"


def _ways(place: str, calling: dict[Way, set[str]], turn: int) -> list[Way]:
    """The ways by which a function is broken: one by which `stepscope run` calls it, and each other kind that does."""
    first = turn % len(TURNS)
    orders = [[*TURNS[first:], *TURNS[:first], *LATER], [COMMANDED], [SCOPED]]
    if place.partition(":")[0].removeprefix("record.") in TWICE:
        orders += [PROFILED, [BY_SIGNAL]]
    elif not any(place in calling[way] for order in orders for way in order):
        orders += [PROFILED]
    found = [next((way for way in order if place in calling[way]), None) for order in orders]
    return list(dict.fromkeys(way for way in found if way is not None))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Scripts bare and in their modes."""
    folder = tmp_path_factory.mktemp("gallery")
    bare = run_jobs(folder, [job(folder, script, "bare", number) for number, script in CHOSEN], PARALLEL)
    # torch itself aborts once in a thousand ends of some scripts (jit.fork): what a signal ended is run once more
    ended = [(number, script) for number, script in CHOSEN if bare[f"{script.stem}-bare"]["exit"].startswith("-")]
    second = tmp_path_factory.mktemp("again")
    bare |= run_jobs(second, [job(second, script, "bare", number) for number, script in ended], PARALLEL)
    jobs = [
        job(folder, script, mode, number, destructors=number % DESTRUCTORS_EVERY == 0)
        for number, script in CHOSEN
        for mode in MODES
        if (script.stem, mode) in set(CASES)
    ]
    for turn in range(0 if LATE else AGAIN):
        again = [(number, HERE / "scripts" / f"{name}.py") for number, name in enumerate(RACY, turn)]
        jobs += [job(folder, path, "run", number, f"{path.stem}-{turn}", switch_s=SWITCH_S) for number, path in again]
    return bare | run_jobs(folder, jobs, PARALLEL, TRAINED)


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> dict[Way, set[str]]:
    """The functions that are called on each way."""
    folder = tmp_path_factory.mktemp("calls")
    ways = dict(enumerate([*TURNS, *LATER, *PROFILED, SCOPED, COMMANDED]))
    jobs = [_way_job(folder, way, str(number), calls=str(folder / f"{number}.calls")) for number, way in ways.items()]
    run_jobs(folder, jobs, PARALLEL, IMPORTED)
    return {way: set((folder / f"{n}.calls").read_text(encoding="utf-8").split()) for n, way in ways.items()}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The scripts of the faults, bare."""
    folder = tmp_path_factory.mktemp("unbroken")
    names = (*FAULTY, *SELDOM, SCOPED[0], COMMANDED[0])
    return run_jobs(folder, [job(folder, _path(name), "bare", 0, name) for name in names], PARALLEL)


@pytest.fixture(scope="module")
def faulty(calling: dict[Way, set[str]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Scripts with a fault in each function in turn, by function and way; the scripts take turns as well."""
    folder = tmp_path_factory.mktemp("faults")
    ways = {fault: _ways(fault, calling, turn) for turn, fault in enumerate(FAULTS)}
    names = {fault: [f"{turn}-{way}" for way in range(len(ways[fault]))] for turn, fault in enumerate(FAULTS)}
    jobs = [
        _way_job(folder, way, name, fault=fault)
        for fault in FAULTS
        for way, name in zip(ways[fault], names[fault], strict=True)
    ]
    results = run_jobs(folder, jobs, PARALLEL, IMPORTED)
    return {fault: {name: results[name] for name in names[fault]} for fault in FAULTS}


@pytest.mark.slow
@pytest.mark.parametrize(("script", "mode"), CASES)
def test_a_script_behaves_as_without_us(results: Results, script: str, mode: str) -> None:
    bare, measured = results[f"{script}-bare"], results[f"{script}-{mode}"]
    for what in SAME:
        assert measured[what] == bare[what], f"{what} of {script} differs under {mode}"
    assert measured["faults"] == [], "our own fault was caught"


@pytest.mark.slow
@pytest.mark.parametrize("script", [script.stem for _, script in CHOSEN if script.stem in TRUTH])
def test_the_steps_that_are_counted_are_those_that_were_trained(results: Results, script: str) -> None:
    found, truth = results[f"{script}-run"], TRUTH[script]
    wanted = truth | truth.get("counted", {})
    if truth.get("unflushed"):
        assert min(FLUSHED, wanted["steps"]) <= found["steps"] <= wanted["steps"]
    else:
        assert found["steps"] == wanted["steps"]
    if wanted["samples"] is not None and found["steps"]:
        samples = wanted["samples"]
        assert found["samples"] == (samples if isinstance(samples, list) else [samples])
    assert any(f'"{truth["said"]}"' in line for line in found["events"]) if "said" in truth else True


def test_the_truth_is_about_scripts_that_are_there_and_exceptions_say_why() -> None:
    assert TRUTH.keys() <= {script.stem for script in SCRIPTS}
    assert all("why" in truth for truth in TRUTH.values() if "counted" in truth)


@TIMELY
@pytest.mark.slow
@pytest.mark.parametrize("turn", range(AGAIN))
@pytest.mark.parametrize("script", RACY)
def test_a_script_with_threads_or_timeouts_behaves_so_each_time(results: Results, script: str, turn: int) -> None:
    bare, measured = results[f"{script}-bare"], results[f"{script}-{turn}"]
    for what in SAME:
        assert measured[what] == bare[what], f"{what} of {script} differs in one of some runs"
    assert measured["faults"] == [], "our own fault was caught"


@TIMELY
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_ours_changes_nothing(unbroken: Results, faulty: dict[str, Results], fault: str) -> None:
    for broken in faulty[fault].values():
        bare = unbroken[broken["script"]]
        if _says_so_before_it_starts(broken, fault):
            continue
        for what in SAME:
            said = f"{what} of {broken['script']} differs with a fault in {fault}:\n{broken['stderr'][-3000:]}"
            assert broken[what] == bare[what], f"{said}\n{broken['faults']}"


def _says_so_before_it_starts(broken: dict[str, object], fault: str) -> bool:
    """Return whether nothing of the script ran, and who started it was told why: by the command, or by `profile`."""
    ran = broken["stdout"] or broken["files"]
    command = broken["exit"] == "70" and "Sorry, this is a fault in Stepscope" in str(broken["stderr"])
    raised = broken["exit"] == "1" and (fault in STARTS or fault == "__main__:main")
    return not ran and (command or raised) and PURPOSE in str(broken["stderr"])


@TIMELY
@pytest.mark.slow
def test_most_functions_are_called_on_some_way(calling: dict[Way, set[str]]) -> None:
    """Else hardly any fault would be thrown; and what is an exception is a function that is there."""
    known = set(places())
    assert len(set().union(*calling.values()) & known) > 0.6 * len(known)
    assert known >= DOORS | STARTS


TRAINING = """import atexit, sys
import torch
def show():
    print(*(name.removeprefix("stepscope.") for name in sys.modules if name.startswith("stepscope.")))
atexit.register(show)  # before ours, and so after it
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(400, 4))
def train():
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""
LOOP = """with __import__("stepscope").profile(model, optimizer, steps="optimizer"):
    train()
"""


@pytest.mark.slow
def test_whatever_a_training_loads_of_ours_is_broken_in_turn(results: Results, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{TRAINING}train()\n", encoding="utf-8")
    (tmp_path / "loop.py").write_text(f"{TRAINING}{LOOP}", encoding="utf-8")
    loaded: set[str] = set()
    for command in (["-m", "stepscope", "run", "-q", "train.py"], ["loop.py"]):
        started = [sys.executable, *command]
        loaded.update(subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split())
    assert "record.session" in loaded
    for result in results.values():
        if result["script"] != "stepscope_used_within_the_script":  # and so it reads runs as well
            loaded.update(name.removeprefix("stepscope.") for name in result["modules"])
    assert sorted(loaded - {*MODULES, *COMMAND, *EMPTY}) == [], "tests/gallery/faults.py knows nothing of them"
