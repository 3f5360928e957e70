"""Scripts that must behave under Stepscope as without it: stdout, exit code, exception, files, and what they print of
their weights. They were written from the issue and the docs, by somebody who had not read the code.

Every script runs bare, under `stepscope run` and within `stepscope.profile`; some of them with a fault in each of our
own functions in turn. Where time is limited (`TESTS_UNTIL`, in CI) a third of them, more than a hundred, run within
`profile`: a sampler takes as long to start as a script.

truth.json states the steps and samples of scripts whose number of steps is certain, by what the script does and by what
docs/measuring.md calls a step; `counted` is what a run has instead, and `why`; `said` is the kind of a note
that it makes. A script whose process or disk ends too early loses what was not flushed (`unflushed`), but for the
warm-up and the step after it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.gallery.faults import MODULES, injectable
from tests.gallery.jobs import HERE, MODES, RECORDS, SAME, SCRIPTS, TRUTH, Job, Results, job, run_jobs

from stepscope.record.plan import WARMUP_STEPS

FAULTY = ("early_stopping_restores_best_state", "dataloader_no_workers_shuffled", "gan_two_optimizers",
          "hand_written_sgd_by_data", "lbfgs_closure", "ends_by_uncaught_own_exception",
          "wgan_five_critic_updates_with_gradient_penalty")  # fmt: skip
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
LATE = time.time() > float(os.environ.get("TESTS_UNTIL", "inf"))
TIMELY = pytest.mark.skipif(LATE, reason="no time is left: make test runs it")
CHOSEN = list(enumerate(SCRIPTS))[:: 5 if LATE else 1]
CASES = [
    (script.stem, mode)
    for number, script in CHOSEN
    for mode in MODES
    if mode == "run" or not LIMITED or number // len(RECORDS) % 3 == 0  # each choice of what is recorded is there
]
FAULTS = injectable()
IMPORTED = [f"stepscope.{name}" for name in MODULES]  # once for all, where nothing is measured bare


def _faulty_job(folder: Path, script: str, name: str, **what: str) -> Job:
    return job(folder, HERE / "scripts" / f"{script}.py", "run", 2, name, **what)


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
    return bare | run_jobs(folder, jobs, PARALLEL, IMPORTED)


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The functions that each script calls when it is measured, by script."""
    folder = tmp_path_factory.mktemp("calls")
    jobs = [_faulty_job(folder, name, name, calls=str(folder / f"{name}.calls")) for name in FAULTY]
    run_jobs(folder, jobs, PARALLEL, IMPORTED)
    return {name: set((folder / f"{name}.calls").read_text(encoding="utf-8").split()) for name in FAULTY}


@pytest.fixture(scope="module")
def faulty(calling: dict[str, set[str]], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Scripts with a fault in each function in turn that one of them calls; the scripts take turns as well."""
    folder = tmp_path_factory.mktemp("faults")
    jobs = []
    for number, fault in enumerate(FAULTS):
        turns = [FAULTY[(number + later) % len(FAULTY)] for later in range(len(FAULTY))]
        script = next((script for script in turns if fault in calling[script]), None)
        if script is not None:
            jobs.append(_faulty_job(folder, script, str(number), fault=fault))
    return run_jobs(folder, jobs, PARALLEL, IMPORTED)


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
@pytest.mark.parametrize(("number", "fault"), list(enumerate(FAULTS)), ids=FAULTS)
def test_a_fault_of_ours_changes_nothing(
    results: Results, calling: dict[str, set[str]], faulty: Results, number: int, fault: str
) -> None:
    if str(number) not in faulty:
        assert not any(fault in called for called in calling.values()), "no script was run with this fault"
        return
    broken = faulty[str(number)]
    bare = results[f"{broken['script']}-bare"]
    for what in SAME:
        assert broken[what] == bare[what], f"{what} of {broken['script']} differs with a fault in {fault}"


@TIMELY
@pytest.mark.slow
def test_most_functions_are_called_by_some_script(calling: dict[str, set[str]]) -> None:
    """Else hardly any fault would be thrown."""
    assert len(set().union(*calling.values())) > len(injectable()) / 2
