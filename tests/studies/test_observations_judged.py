"""Every observation on a board whose behaviour is known, and on the same board with that behaviour turned round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.studies.tx2_board import Behaviour, board_evidence, days, memory

from stepscope.analysis.channels import Growth
from stepscope.experiments.observations import (
    AS_THE_PAPER,
    FAILS,
    HOLDS,
    UNKNOWN,
    Limits,
    Observations,
    Outcome,
    Verdict,
    all_observations,
    discover_observation_files,
)
from stepscope.experiments.observations._evidence import BOARDS_GPU, RUNS, Evidence, _power_of_rails
from stepscope.experiments.observations._measurements import gather_measurements, planned_measurements
from stepscope.experiments.observations._statistics import Comparison, judge_models, judge_run_shares
from stepscope.experiments.observations.study import judge_all

# All that the paper saw turned round at once: each of the observations 1 to 11 has its own reason to fail.
CONTRARY = Behaviour(
    gpu_use=0.2, gpu_use_recurrent=0.25, gpu_growth=0.0, use_repeats=False, denver=0.35, watts=(1.0, 4.0, 1.5),
    power_repeats=False, power_growth=0.8, step_growth=(1.2, 1.2),
)  # fmt: skip
# Of observations that claim two things, the second one alone turned round.
OTHER_HALF: list[tuple[int, dict[str, Any]]] = [
    (1, {"in_turn": False}),
    (3, {"cpu_growth": 0.2}),
    (6, {"watts_recurrent": (2.5, 1.0, 1.5)}),
    (8, {"step_growth": (-0.1, -0.1)}),
]


def judged(number: int, evidence: Evidence) -> Verdict:
    return next(each for each in all_observations() if each.number == number).judge(evidence)


def outcome(number: int, evidence: Evidence) -> Outcome:
    return judged(number, evidence).outcome


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The board as the paper saw it."""
    return board_evidence(tmp_path_factory.mktemp("known"), Behaviour(), memory=memory(), days=days(0.001))


def test_there_are_twelve_observations_and_each_file_holds_some() -> None:
    assert [each.number for each in all_observations()] == list(range(1, 13))
    assert sum(len(module.OBSERVATIONS) for module in discover_observation_files().modules) == 12
    assert all(module.OBSERVATIONS for module in discover_observation_files().modules)
    assert discover_observation_files().warnings == ()


def test_every_observation_says_what_the_paper_saw_and_where_it_is_drawn() -> None:
    assert all(each.claim and each.paper and each.figure for each in all_observations())


@pytest.mark.parametrize("number", range(1, 13))
def test_on_a_board_that_behaves_as_in_the_paper_every_observation_holds(known: Evidence, number: int) -> None:
    found = judged(number, known)
    assert found.outcome == HOLDS, found.why
    assert found.reading == AS_THE_PAPER
    for part in found.parts:
        assert part.interval is not None
        assert part.test
        assert part.effect
        assert part.interval.low is not None
        assert part.interval.high is not None
        assert part.interval.low <= part.interval.value <= part.interval.high


@pytest.fixture(scope="module")
def contrary(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The board that behaves as no board of the paper."""
    out = tmp_path_factory.mktemp("contrary")
    return board_evidence(out, CONTRARY, memory=memory(gradients=16.0), days=days(-0.001))


@pytest.mark.parametrize("number", range(1, 13))
def test_with_the_behaviour_reversed_every_verdict_flips(contrary: Evidence, number: int) -> None:
    found = judged(number, contrary)
    assert found.outcome == FAILS, found.why


@pytest.mark.parametrize(("number", "change"), OTHER_HALF)
def test_one_claim_of_two_that_fails_is_enough(tmp_path: Path, number: int, change: dict[str, Any]) -> None:
    found = judged(number, board_evidence(tmp_path, Behaviour(**change)))
    assert found.outcome == FAILS, found.why


def test_of_a_device_with_one_core_no_fewer_threads_are_asked_for() -> None:
    row = {"run": "r", "workload": "net", "device": "cpu", "batch": 4, "threads": 1, "cores": 1}
    verdict = judged(1, Evidence(pl.DataFrame([row], schema=RUNS)))
    assert (verdict.outcome, verdict.why.count("there is one core")) == (UNKNOWN, 2)
    assert "--threads" not in verdict.why


def test_parameters_that_grow_with_the_batch_are_against_observation_nine() -> None:
    assert outcome(9, Evidence(memory=memory(parameters=2.0))) == FAILS


def test_input_that_grows_as_much_as_intermediate_data_is_against_observation_nine() -> None:
    found = judged(9, Evidence(memory=memory(**{"input data": 16.0})))
    assert found.outcome == FAILS
    assert "convnet 50%" in found.parts[0].of


def test_accuracy_that_falls_is_against_observation_twelve() -> None:
    assert outcome(12, Evidence(days=days(-0.001))) == FAILS


def test_two_seeds_are_too_few_for_observation_twelve_and_it_says_so() -> None:
    found = judged(12, Evidence(days=days(0.001, seeds=2)))
    assert found.outcome == UNKNOWN
    assert "too few" in found.why
    assert "2 seeds" in found.why


@pytest.mark.parametrize("number", range(1, 13))
def test_without_any_evidence_nothing_is_a_pass(number: int) -> None:
    found = judged(number, Evidence())
    assert found.outcome == UNKNOWN
    assert found.why


def test_without_a_power_sensor_power_cannot_be_judged(tmp_path: Path) -> None:
    evidence = board_evidence(tmp_path, Behaviour(rails=()), repeats=1)
    for number in (6, 7, 8):
        found = judged(number, evidence)
        assert found.outcome == UNKNOWN
        assert "no sensor measured power" in found.why


def test_an_estimate_of_power_is_no_sensor(tmp_path: Path) -> None:
    evidence = board_evidence(tmp_path, Behaviour(power_kind="estimate"), repeats=1)
    for number in (6, 7, 8):
        found = judged(number, evidence)
        assert found.outcome == UNKNOWN
        assert "estimated" in found.why


def test_components_that_share_a_rail_cannot_be_told_apart(tmp_path: Path) -> None:
    found = judged(6, board_evidence(tmp_path, Behaviour(rails=("VDD_IN", "VDD_SYS_GPU")), repeats=1))
    assert found.outcome == UNKNOWN
    assert "cpu and memory" in found.why


def test_an_accelerator_that_does_not_say_its_use_cannot_be_judged(tmp_path: Path) -> None:
    evidence = board_evidence(tmp_path, Behaviour(gpu_sensor=False), repeats=1)
    assert [outcome(number, evidence) for number in (1, 2, 3, 5)] == [UNKNOWN] * 4


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The same board without its accelerator: counterparts are judged, each labelled so."""
    board = Behaviour(device="cpu", gpu_sensor=False, threads=4)
    return board_evidence(tmp_path_factory.mktemp("cpu"), board)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 6])
def test_the_counterpart_is_labelled(cpu: Evidence, number: int) -> None:
    assert judged(number, cpu).reading.startswith("counterpart on a CPU")


def test_training_cores_are_held_against_the_others(cpu: Evidence) -> None:
    busier = judged(1, cpu).parts[0]
    assert busier.outcome == HOLDS
    assert busier.interval is not None
    assert busier.interval.value == pytest.approx(0.35 / 0.05, rel=0.15)


def test_where_every_core_trains_there_is_nothing_to_compare(tmp_path: Path) -> None:
    found = judged(1, board_evidence(tmp_path, Behaviour(device="cpu", gpu_sensor=False, threads=6), repeats=1))
    assert found.outcome == UNKNOWN
    assert "--threads" in found.why


def test_the_use_of_the_training_process_shows_the_step(cpu: Evidence) -> None:
    assert outcome(2, cpu) == HOLDS


def test_its_use_stays_with_the_batch_unless_it_does_not(cpu: Evidence, tmp_path: Path) -> None:
    assert outcome(3, cpu) == HOLDS
    other = Behaviour(device="cpu", gpu_sensor=False, threads=4, cpu_growth=0.3)
    assert outcome(3, board_evidence(tmp_path, other)) == FAILS


def test_the_cores_stand_for_the_accelerator_in_power(cpu: Evidence, tmp_path: Path) -> None:
    assert outcome(6, cpu) == FAILS  # the idle GPU draws more than the cores here
    board = Behaviour(device="cpu", gpu_sensor=False, threads=4, watts=(0.2, 4.0, 1.0), watts_recurrent=(0.2, 1.0, 2.0))
    assert outcome(6, board_evidence(tmp_path, board)) == HOLDS


def test_runs_beside_other_programs_do_not_judge_the_cores(known: Evidence) -> None:
    crowded = known.runs.with_columns(background=pl.lit("background CPU load of 1.7 cores"))
    found = judged(4, Evidence(runs=crowded, cores=known.cores, rhythm=known.rhythm))
    assert found.outcome == UNKNOWN
    assert "1.7 cores" in found.why


def _beside_load(evidence: Evidence) -> Evidence:
    """The same runs as those of a simulated board's GPU, on a machine that other programs kept busy."""
    load = "background CPU load: the training waited for a core 60 % of the time"
    return replace(evidence, runs=evidence.runs.with_columns(background=pl.lit(load), device=pl.lit(BOARDS_GPU)))


def test_behind_a_simulated_gpu_shares_are_judged_beside_other_load_and_times_are_not(known: Evidence) -> None:
    beside = _beside_load(known)
    assert {number: outcome(number, beside) for number in (1, 3, 4, 5, 6)} == dict.fromkeys((1, 3, 4, 5, 6), HOLDS)
    assert {number: outcome(number, beside) for number in (8, 10, 11)} == dict.fromkeys((8, 10, 11), UNKNOWN)


def test_verdicts_behind_a_simulated_gpu_flip_with_the_board(tmp_path: Path) -> None:
    beside = _beside_load(board_evidence(tmp_path, CONTRARY))
    assert {number: outcome(number, beside) for number in (1, 3, 4, 5, 6)} == dict.fromkeys((1, 3, 4, 5, 6), FAILS)


def _another_model(known: Evidence, background: str | None) -> Evidence:
    """The same with the runs of one more model, of which nothing may be known."""
    runs = known.runs.filter(workload=known.runs["workload"][0])
    more = runs.with_columns(
        run=pl.lit("more-") + pl.col("run"), workload=pl.lit("another"), background=pl.lit(background, pl.String)
    )
    return replace(known, runs=pl.concat([known.runs, more]))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6, 7])
def test_a_model_whose_runs_were_all_disturbed_keeps_what_is_claimed_of_all_open(known: Evidence, number: int) -> None:
    found = judged(number, _another_model(known, "background CPU load of 1 core"))
    assert found.outcome == UNKNOWN
    assert any("another" in part.why and "disturbed" in part.why for part in found.parts)


def test_a_model_that_was_never_read_keeps_what_is_claimed_of_all_open(known: Evidence) -> None:
    assert outcome(7, _another_model(known, None)) == UNKNOWN


def test_periods_are_not_judged_by_disturbed_runs(known: Evidence) -> None:
    busy = known.runs.with_columns(background=pl.lit("background CPU load of 1 core"))
    for number in (2, 7):
        assert outcome(number, replace(known, runs=busy)) == UNKNOWN


def test_models_without_a_batch_size_in_common_are_not_compared(known: Evidence) -> None:
    other = pl.when(pl.col("kind") == "recurrent").then(pl.col("batch") * 3).otherwise("batch")
    found = judged(5, replace(known, runs=known.runs.with_columns(batch=other.cast(known.runs.schema["batch"]))))
    assert found.outcome == UNKNOWN
    assert "no batch size in common" in found.parts[0].why


@pytest.mark.parametrize("number", [3, 5])
def test_the_use_of_an_accelerator_is_not_judged_by_disturbed_runs(known: Evidence, number: int) -> None:
    load = pl.lit("background CPU load of 1 core")
    found = judged(number, replace(known, runs=known.runs.with_columns(background=load)))
    assert found.outcome == UNKNOWN
    assert "background CPU load of 1 core" in found.why
    idle = known.runs.with_columns(background=load, accelerator_use=pl.lit(0.0), run=pl.lit("idle-") + pl.col("run"))
    beside = replace(known, runs=pl.concat([known.runs, idle]))
    assert judged(number, beside).parts[0] == judged(number, known).parts[0]


def test_a_model_whose_memory_could_not_be_counted_keeps_observation_nine_open() -> None:
    refused = {"memory": "memory of net, counted on a dry run: fake tensors stopped at aten::unique"}
    found = judged(9, Evidence(memory=memory(), absent=refused))
    assert found.outcome == UNKNOWN
    assert "memory of net" in found.why
    assert judged(9, Evidence(memory=memory(parameters=2.0), absent=refused)).outcome == FAILS


@pytest.mark.parametrize("number", [1, 5, 10])
def test_a_model_of_which_no_run_was_made_keeps_what_is_claimed_of_all_open(known: Evidence, number: int) -> None:
    lost = replace(known, absent={"models": "vgg16 batch 4, repeat 1 of 3: failed: out of memory"})
    (found,) = judge_all(lost, (number,))
    assert found.outcome == UNKNOWN
    assert "vgg16" in found.why
    assert judge_all(lost, (12,))[0].outcome == HOLDS  # of another network


def test_models_whose_runs_all_failed_are_named_as_lost() -> None:
    request = Observations(workloads=("lenet", "alexnet-c32"), batch=(4,), repeats=2, only=(10,), device="cpu")
    failed = {"status": "failed", "reason": "out of memory"}
    gathered = gather_measurements(request, {point.id: failed for point in planned_measurements(request)})
    assert all(name in gathered.absent["models"] for name in ("lenet batch 4", "alexnet-c32 batch 4"))


def test_a_batch_size_whose_runs_were_all_disturbed_keeps_its_model_open(known: Evidence) -> None:
    name, largest = known.runs["workload"][0], known.runs["batch"].max()
    here = (pl.col("workload") == name) & (pl.col("batch") == largest)
    load = pl.when(here).then(pl.lit("background CPU load of 1 core"))
    found = judged(10, replace(known, runs=known.runs.with_columns(background=load)))
    assert found.outcome == UNKNOWN
    outcomes = {each.model: each.outcome for each in found.parts[0].models}
    assert outcomes.pop(name) == UNKNOWN
    assert set(outcomes.values()) == {HOLDS}
    used = judged(3, replace(known, runs=known.runs.with_columns(background=load)))
    assert used.outcome == UNKNOWN
    assert "batch sizes were disturbed" in used.why


def test_the_power_of_a_total_is_the_sum_of_its_rails_whoever_reads_them_when() -> None:
    def rail(watts: float, t_ms: list[int], gap: int | None = None) -> Any:
        t_ns = 1e6 * np.array(t_ms)
        holes = np.arange(len(t_ms) - 1) == (-1 if gap is None else gap)
        growth = Growth(t_ns, watts * np.diff(t_ns) * 1e-9, holes)
        return SimpleNamespace(best=SimpleNamespace(growth=growth, window_ns=1e6 * watts, refresh_ns=1e6))

    lines = [rail(2.0, list(range(0, 120, 10))), rail(3.0, list(range(5, 135, 25)), gap=2)]
    series, smears_ns = _power_of_rails("total", lines)
    assert series.t_ns.tolist() == [17.5e6, 42.5e6, 92.5e6]  # without the gap of the slower one
    assert series.values == pytest.approx([5.0, 5.0, 5.0])
    assert smears_ns == 3e6


def test_clusters_that_are_hardly_ever_idle_are_against_observation_four(tmp_path: Path) -> None:
    verdict = judged(4, board_evidence(tmp_path, Behaviour(denver=0.75, a57=0.95)))
    assert [part.outcome for part in verdict.parts] == [HOLDS, HOLDS, FAILS]
    assert verdict.deciding.claim.endswith("idle for much of the time")


def test_a_claim_that_the_data_selected_from_several_has_the_wider_interval() -> None:
    model = ("net", 6, [Comparison("", 0.3, 0.1, 4)])
    single, selected = (
        judge_models("", "", "", Limits(least=0.0), [model], selected_from=claims).interval for claims in (1, 3)
    )
    assert single is not None
    assert selected is not None
    ends = (selected.low, single.low, 0.3, single.high, selected.high)
    known = [end for end in ends if end is not None]
    assert len(known) == 5
    assert sorted(set(known)) == known


def test_a_batch_size_without_the_period_keeps_the_share_of_all_runs_open() -> None:
    periodic = [("net", batch, 3, 3) for batch in (4, 8, 16, 32)]
    whole, holed, contrary = (
        judge_run_shares([*periodic, ("net", 64, hits, count)], Limits(least=0.5))[0]
        for hits, count in ((3, 3), (0, 3), (0, 12))
    )
    assert whole.outcome == HOLDS
    assert (holed.outcome, "but at batch 64 0 of 3 runs" in holed.why) == (UNKNOWN, True)
    assert contrary.outcome != HOLDS
