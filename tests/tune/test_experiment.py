"""The experiment finds what was planted, gives up what is hopeless, and keeps what it knows."""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tune.fake_training import FACTS, FakePlace, FakeTraining

from stepscope.__main__ import main
from stepscope.api.tune import run_tune_request
from stepscope.cli.tune import _write_config
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine.folder import StudyFolder
from stepscope.experiments.tune import TuneRequest, experiment
from stepscope.experiments.tune.changes import Change, all_changes, select_changes
from stepscope.experiments.tune.config import read_config
from stepscope.experiments.tune.judge import gains, judge
from stepscope.experiments.tune.pair_statistics import (
    FINAL,
    Arm,
    ExperimentStore,
    process_interval,
    ratio_interval,
    saving,
    tie_groups,
    trimmed_mean,
)
from stepscope.experiments.tune.process import TooShort


def test_one_disturbed_pair_does_not_bend_the_ratio() -> None:
    logs = [math.log(0.8) + 0.002 * place for place in range(-5, 6)]
    ratio, low, high = ratio_interval([*logs, 3.0])
    assert ratio == pytest.approx(0.8, abs=0.004)
    assert low < 0.8 < high < 0.85


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw = random.Random(3)
    held = 0
    for _ in range(400):
        _, low, high = ratio_interval([draw.gauss(0.1, 0.05) for _ in range(8)])
        held += low <= math.exp(0.1) <= high
    assert 0.92 <= held / 400 <= 0.99


def test_of_few_pairs_the_interval_is_wide_and_of_one_there_is_none() -> None:
    assert math.isnan(ratio_interval([0.1])[1])
    _, low, high = ratio_interval([0.1, 0.11, 0.12])
    assert low < math.exp(0.1) < high


def test_processes_that_differ_widen_the_interval_beyond_that_of_their_pairs() -> None:
    alike = [[-0.30, -0.31, -0.29, -0.30]] * 3
    differing = [[-0.10, -0.11, -0.09, -0.10], [-0.30, -0.31, -0.29, -0.30], [-0.50, -0.51, -0.49, -0.50]]
    narrow, wide = process_interval(alike), process_interval(differing)
    assert narrow[0] == pytest.approx(wide[0], rel=0.01)
    assert wide[2] - wide[1] > 5 * (narrow[2] - narrow[1])


def test_a_preempted_step_does_not_count_and_a_stall_of_the_loader_does() -> None:
    seconds = [0.01] * 9 + [0.5]
    assert trimmed_mean(seconds, 0.2) == pytest.approx(0.01)
    assert trimmed_mean(seconds) == pytest.approx(0.059)


def test_the_planted_changes_are_ranked_and_combined_and_checked_at_the_end() -> None:
    tuned = FakeTraining({"channels_last": 0.8, "fused": 0.9, "bf16": 1.3, "isa=avx2": 0.88}).tuning()
    assert [arm.name for arm in tuned.winners()] == ["channels_last", "isa=avx2", "fused"]
    best = tuned.best()
    assert best is not None
    assert set(best.changes) == {"channels_last", "isa=avx2", "fused"}
    final = tuned.arms[FINAL]
    assert final.interval()[0] == pytest.approx(0.8 * 0.88 * 0.9, rel=0.02)
    assert final.of_process


class OtherAtTheEnd(FakeTraining):
    """Other ratios, or broken changes, in the fresh processes of the check at the end."""

    def __init__(self, ratios: Mapping[str, float], at_end: Mapping[str, float], broken: Sequence[str] = ()) -> None:
        super().__init__(ratios)
        self.at_end = at_end, broken

    def open_training(self, changes: Sequence[Change], facts: Mapping[str, Any]) -> FakePlace:
        if self.opened:
            self.ratios, self.broken = self.at_end
        return super().open_training(changes, facts)


@pytest.mark.parametrize(
    ("at_end", "broken", "said"),
    [({"fused": 1.08}, (), r"took [78]\.. % \[.*\] more time"), ({}, ("fused",), r"failed .* \(it crashed\)")],
    ids=["slower", "failed"],
)
def test_a_winner_that_the_check_at_the_end_refutes_is_not_recommended(
    at_end: Mapping[str, float], broken: Sequence[str], said: str, tmp_path: Path
) -> None:
    tuned = OtherAtTheEnd({"fused": 0.95}, at_end, broken).tuning(only=("fused",))
    findings = judge(tuned, "t")
    assert re.match(rf"fused won the search and {said}.*: leave the training as it is", findings.answer)
    tables = {table.name: table for table in findings.tables}
    assert not {"helps", "code"} & set(tables)
    assert tables["no-gain"].rows[0][4] == "refuted by the check at the end"
    _write_config(tmp_path / "x.toml", tuned, TuneRequest("lenet"))
    assert read_config(tmp_path / "x.toml").changes == ()


def test_a_check_at_the_end_that_excludes_no_gain_is_said_to_be_none_that_confirms_it() -> None:
    tuned = OtherAtTheEnd({"fused": 0.95}, {"fused": 1.003}).tuning(only=("fused",))
    final = tuned.arms[FINAL]
    final.pairs = [(log, process_pair) for process_pair in range(4) for log in (0.02, -0.015, 0.03, -0.02, 0.01)]
    assert final.interval()[1] < 1 < final.interval()[0]
    findings = judge(tuned, "t")
    assert findings.answer.endswith("does not confirm a gain and excludes none: leave the training as it is.")
    tables = {table.name: table for table in findings.tables}
    assert tables["no-gain"].rows[0][4] == "not confirmed by the check at the end"


def test_changes_that_fail_together_at_the_end_are_told_and_each_stays_what_it_was_measured_to_be() -> None:
    tuned = OtherAtTheEnd({"channels_last": 0.8, "fused": 0.9}, {}, ["fused"]).tuning(only=("channels_last", "fused"))
    findings = judge(tuned, "t")
    assert findings.answer.startswith("channels_last + fused won the search and failed")
    assert [row[1] for table in findings.tables if table.name == "helps" for row in table.rows] == [
        "channels_last",
        "fused",
    ]
    assert tuned.best() is None


def test_what_is_slower_in_its_first_pairs_is_given_up() -> None:
    tuned = FakeTraining({"bf16": 1.5}).tuning()
    assert 3 < len(tuned.arms["bf16"].pairs) <= 6  # those after the third when all others were clear
    assert tuned.best() is None
    assert "leave the training as it is" in judge(tuned, "t").answer


def test_noise_alone_recommends_nothing() -> None:
    recommended = 0
    for seed in range(5):
        training = FakeTraining({}, noise=0.05)
        training.random = random.Random(seed)
        recommended += training.tuning().best() is not None
    assert recommended <= 1


def test_a_change_that_ends_its_process_is_told_and_the_others_go_on() -> None:
    tuned = FakeTraining({"channels_last": 0.8}, broken=["malloc-keep"]).tuning()
    broken = tuned.arms["malloc-keep"]
    assert (broken.status, broken.reason) == ("failed", "it crashed")
    assert [arm.name for arm in tuned.winners()] == ["channels_last"]


def test_two_winners_that_fail_together_leave_the_best_single_change() -> None:
    tuned = FakeTraining({"channels_last": 0.8, "fused": 0.9}, broken=["channels_last + fused"]).tuning()
    together = tuned.arms["channels_last + fused"]
    assert (together.status, together.reason) == ("failed", "it crashed")
    best = tuned.best()
    assert best is not None
    assert best.name == "channels_last"
    findings = judge(tuned, "t")
    assert findings.answer.startswith("channels_last: ")
    assert ("channels_last + fused", "", "it crashed") in next(t for t in findings.tables if t.name == "untried").rows


def test_a_combination_whose_loss_drifts_is_not_the_answer() -> None:
    training = FakeTraining({"channels_last": 0.8, "fused": 0.85})
    training.drifts = {"channels_last": 0.03, "fused": 0.03}
    tuned = training.tuning(only=("channels_last", "fused"))
    best = tuned.best()
    assert best is not None
    assert best.changes == ("channels_last",)
    assert tuned.arms["channels_last + fused"].reason == "the loss drifts by more than 5 %"


def test_a_change_whose_loss_drifts_in_the_check_at_the_end_is_not_recommended() -> None:
    tuned = FakeTraining({"malloc-keep": 0.8}).tuning(only=("malloc-keep",))
    assert tuned.best() is tuned.best_before_check() is not None
    tuned.arms[FINAL].drift = 0.2  # of one process pair losses are not compared in the search
    assert tuned.best() is None
    assert "its loss drifts by +20.0 % in the check at the end" in judge(tuned, "t").answer


def test_the_interval_of_a_combination_holds_that_of_what_it_was_measured_against() -> None:
    tuned = FakeTraining({"channels_last": 0.8, "fused": 0.9}, noise=0.05).tuning(only=("channels_last", "fused"))
    ratio, low, high = tuned.arms["channels_last + fused"].interval()
    _, base_low, base_high = tuned.arms["channels_last"].interval()
    assert low < ratio < high
    assert math.log(high / low) > math.log(base_high / base_low) * 0.9
    assert low < 0.72 < high


def test_of_fewer_than_three_couples_the_interval_holds_how_couples_differ() -> None:
    logs = [math.log(0.97) + 0.001 * pair for pair in range(-4, 4)]
    within = ratio_interval(logs)
    for process_pairs, half in ((1, 0.1050), (2, 0.0743)):
        ratio, low, high = process_interval([logs[place::process_pairs] for place in range(process_pairs)])
        assert ratio == within[0]
        assert math.log(ratio / low) == pytest.approx(math.hypot(math.log(ratio / within[1]), half), abs=1e-3)
        assert high > within[2]


def test_what_rounds_numbers_is_combined_with_what_a_process_begins_with() -> None:
    tuned = FakeTraining({"bf16": 0.6, "isa=avx2": 0.85}).tuning(only=("bf16", "isa=avx2"))
    best = tuned.best()
    assert best is not None
    assert {*best.changes} == {"bf16", "isa=avx2"}


def test_for_memory_what_two_changes_at_start_save_is_held_against_the_training_as_is() -> None:
    training = FakeTraining({})
    training.process_memory = {"malloc-keep": 0.6, "isa=avx2": 0.8, "malloc-keep + isa=avx2": 0.48}
    tuned = training.tuning(goal="memory", only=("malloc-keep", "isa=avx2"))
    together = tuned.arms["malloc-keep + isa=avx2"]
    assert (together.as_is_bytes, together.memory_bytes) == (300_000_000, 144_000_000)
    best = tuned.best()
    assert best is together


def test_a_small_gain_that_three_couples_agree_on_is_a_gain() -> None:
    arm = Arm("isa=avx2", ("isa=avx2",), ("isa=avx2",), "measured", of_process=True)
    arm.pairs = [
        (math.log(centre), process_pair) for process_pair, centre in enumerate((0.955, 0.96, 0.965)) for _ in range(4)
    ]
    assert arm.interval(0.99)[2] < 1


def test_for_memory_bytes_decide_between_those_of_a_step_and_those_of_a_process() -> None:
    training = FakeTraining({"checkpoint": 1.2})
    training.facts |= {"blocks": 3}
    training.memory = {"checkpoint": 0.5}  # half a megabyte of one
    training.process_memory = {"malloc-keep": 0.9}  # 30 MB of 300
    tuned = training.tuning(goal="memory", only=("checkpoint", "malloc-keep"))
    best = tuned.best()
    assert best is not None
    assert best.name == "malloc-keep"
    assert "10.0 % less memory of the process" in judge(tuned, "t").answer


def test_a_change_whose_loss_drifts_is_not_combined() -> None:
    training = FakeTraining({"channels_last": 0.8, "bf16": 0.85})
    training.drifts["bf16"] = 0.2
    tuned = training.tuning()
    assert [arm.name for arm in tuned.winners()] == ["channels_last", "bf16"]
    best = tuned.best()
    assert best is not None
    assert best.changes == ("channels_last",)
    assert any("bf16: the loss drifts" in note for note in judge(tuned, "t").notes)


def test_a_drifting_change_is_not_recommended_where_it_is_the_fastest() -> None:
    training = FakeTraining({"channels_last": 0.9, "bf16": 0.7})
    training.drifts["bf16"] = math.nan
    best = training.tuning().best()
    assert best is not None
    assert best.changes == ("channels_last",)


def test_a_loader_that_takes_much_of_the_step_is_tried_first() -> None:
    training = FakeTraining({"workers=1": 0.4, "workers=2": 0.4})
    training.facts["data_share"] = 0.6
    training.tuning()
    assert training.opened[1][0].startswith("workers=")


def test_a_block_is_longer_than_what_workers_may_have_loaded_before_it() -> None:
    asked: list[tuple[int, int]] = []

    class Noting(FakeTraining):
        def open_training(self, changes: Any, facts: Mapping[str, Any]) -> Any:
            place = super().open_training(changes, facts)
            plain = place.ask

            def ask(limit_s: float, **command: Any) -> dict[str, Any]:
                if command["do"] == "block":
                    asked.append((command["warmup"], command["steps"]))
                return plain(limit_s, **command)

            place.ask = ask  # type: ignore[method-assign]
            return place

    training = Noting({"workers=4": 0.5})
    training.facts |= {"data_share": 0.9, "step_s": 10.0}
    training.tuning(only=("workers=4",))
    assert min(warmup for warmup, _ in asked[1:]) >= 4 * 2 + 2
    assert min(steps for _, steps in asked[1:]) >= 3 * 4 * 2


@pytest.mark.parametrize(("compiled", "least"), [(False, 0.0), (True, 900.0)], ids=["as it is written", "compiled"])
def test_a_change_that_waits_for_ever_takes_no_longer_than_the_experiment(compiled: bool, least: float) -> None:
    limits: dict[tuple[str, ...], float] = {}

    class Noting(FakeTraining):
        def open_training(self, changes: Any, facts: Mapping[str, Any]) -> Any:
            place = super().open_training(changes, facts)
            plain = place.ask

            def ask(limit_s: float, **command: Any) -> dict[str, Any]:
                if command["do"] == "block":
                    names = (*place.at_start, *command["changes"])
                    limits[names] = limit_s
                return plain(limit_s, **command)

            place.ask = ask  # type: ignore[method-assign]
            return place

    training = Noting({})
    training.facts |= {"compiled": compiled, "compiler": "g++", "data_share": 0.5}
    training.tuning(seconds=180.0, only=("fused", "workers=2", "compile"))
    assert least <= limits["fused",] <= max(least, 250.0)
    assert least <= limits["workers=2",] <= max(least, 300.0)
    assert compiled or limits["compile",] == 900.0


def test_a_training_that_cannot_be_started_again_leaves_what_was_measured() -> None:
    class Once(FakeTraining):
        def open_training(self, changes: Any, facts: Mapping[str, Any]) -> Any:
            if len(self.opened) > 1:
                raise TooShort("the script ended: the folder is there already")
            return super().open_training(changes, facts)

    tuned = Once({"fused": 0.7}).tuning(only=("fused",))
    found = judge(tuned, "t")
    assert "fused" in found.answer
    assert any("could not be started again: the script ended: the folder" in note for note in found.notes)
    broken = Once({})
    broken.opened = [(), ()]
    with pytest.raises(TooShort):
        broken.tuning()


def test_the_sentence_says_of_each_change_what_the_table_says() -> None:
    tuned = FakeTraining({}).tuning(only=("fused",))
    arm = tuned.arms["fused"]
    arm.reason = ""
    for logs, word, said in (
        ([-0.1, -0.05, -0.12, -0.03], "likely a gain", "Cannot tell yet whether fused helps"),
        ([-0.5, 0.4, -0.6, 0.8], "cannot tell yet", "Cannot tell yet whether fused helps"),
        ([0.02, 0.01, 0.03, 0.01, -0.002, 0.02, 0.01, -0.001], "no gain", "fused is"),
        ([0.001, -0.001] * 8, "no gain", "fused is not certain to help: leave the training as it is."),
        ([0.2, 0.21, 0.22, 0.2, 0.21, 0.2, 0.22], "slower", "fused is not certain to help"),
        ([0.5, 0.32, 0.45], "likely slower, not certain", "fused is not certain to help"),
        ([0.3, 0.31, 0.02, 0.28, 0.3, -0.01], "cannot tell yet", "Cannot tell yet whether fused helps"),
    ):
        arm.pairs = [(log, 0) for log in logs]
        found = judge(tuned, "t")
        rows = {row[0]: row[4] for table in found.tables if table.name == "no-gain" for row in table.rows}
        assert found.answer.startswith(said), (logs, found.answer)
        assert str(rows["fused"]).startswith(word), (logs, rows)


def test_the_order_within_pairs_is_random_and_each_change_has_its_own_as_is_block() -> None:
    training = FakeTraining({})
    training.tuning(only=("fused",))
    pairs = list(zip(training.blocks[1::2], training.blocks[2::2], strict=False))
    assert all({*pair} == {(), ("fused",)} for pair in pairs)
    assert {pair[0] for pair in pairs} == {(), ("fused",)}


def test_ctrl_c_keeps_what_is_known_and_the_same_folder_goes_on() -> None:
    kept: dict[str, Mapping[str, Any]] = {}

    def keep(name: str, content: Mapping[str, Any]) -> None:
        kept[name] = json.loads(json.dumps(content))

    training = FakeTraining({"channels_last": 0.8})
    training.interrupt_after = 60
    first = training.tuning(store=ExperimentStore(keep, kept), only=("channels_last", "fused", "foreach"))
    known = {name: len(arm.pairs) for name, arm in first.arms.items() if arm.pairs}
    assert not first.interrupted or known
    training.interrupt_after, training.blocks = None, []
    second = training.tuning(store=ExperimentStore(keep, kept), only=("channels_last", "fused", "foreach"))
    assert not second.interrupted
    assert all(len(second.arms[name].pairs) >= count for name, count in known.items() if name != FINAL)
    assert second.arms["channels_last"].pairs[: known["channels_last"]] == first.arms["channels_last"].pairs


def test_the_command_that_goes_on_writes_the_configuration_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = FakeTraining({})
    training.interrupt_after = 1
    tuned = training.tuning()
    monkeypatch.setattr("stepscope.api.tune.run_tune_request", lambda *_, **__: (judge(tuned, "t"), tuned))
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "train.py", "--apply", "x.toml", "--out", "o", "-q", "--", "--lr", "1"]) == 130
    assert "go on with: stepscope tune --apply x.toml --out o -- train.py --lr 1\n" in capsys.readouterr().err


class InterruptedAtTheEnd(FakeTraining):
    def open_training(self, changes: Sequence[Change], facts: Mapping[str, Any]) -> FakePlace:
        if self.opened:
            raise KeyboardInterrupt
        return super().open_training(changes, facts)


def test_a_combination_that_was_not_checked_before_ctrl_c_is_answered_with_its_times() -> None:
    tuned = InterruptedAtTheEnd({"channels_last": 0.8, "fused": 0.9}).tuning(only=("channels_last", "fused"))
    said = judge(tuned, "t").answer
    found = re.match(
        r"channels_last \+ fused: (.*) ms per step instead of (.*) ms, 2[78]\.. % \[.*\] less time; not", said
    )
    assert found is not None, said
    assert [float(text) for text in found.groups()] == pytest.approx([7.2, 10.0], rel=0.02)


def test_the_largest_combination_is_the_answer_in_whatever_order_a_folder_lists_them() -> None:
    kept: dict[str, Mapping[str, Any]] = {}

    def keep(name: str, content: Mapping[str, Any]) -> None:
        kept[name] = json.loads(json.dumps(content))

    training = FakeTraining({"channels_last": 0.8, "isa=avx2": 0.88, "fused": 0.9})
    names = ("channels_last", "isa=avx2", "fused")
    first = training.tuning(store=ExperimentStore(keep, kept), only=names).best()
    kept = dict(reversed(kept.items()))
    kept["progress"] = {**kept["progress"], "spent_s": 1e9}  # no time is left to combine anything again
    second = training.tuning(store=ExperimentStore(keep, kept), only=names).best()
    assert first is not None
    assert second is not None
    assert len(first.changes) == 3
    assert second.changes == first.changes


def test_what_was_measured_of_another_training_is_not_gone_on_with() -> None:
    kept: dict[str, Mapping[str, Any]] = {}

    def keep(name: str, content: Mapping[str, Any]) -> None:
        kept[name] = json.loads(json.dumps(content))

    training = FakeTraining({"fused": 0.8})
    training.tuning(store=ExperimentStore(keep, kept), only=("fused",))
    before = json.dumps(kept)
    training.facts["parameters"] = training.facts["parameters"] * 2
    with pytest.raises(UsageError, match="of another training:\n  parameters: 1000 -> 2000"):
        training.tuning(store=ExperimentStore(keep, kept), only=("fused",))
    assert json.dumps(kept) == before


def test_a_script_that_was_edited_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr("stepscope.experiments.tune.experiment.Tuning.run", lambda tuning: opened.append(tuning))
    script = tmp_path / "train.py"
    request = TuneRequest(str(script))
    for text in ("print(1)", "print(1)"):
        script.write_text(text)
        run_tune_request(request, tmp_path / "out", progress=False)
    assert len(opened) == 2
    script.write_text("print(2)")
    with pytest.raises(UsageError, match=r"(?s)the training has changed since .*  train\.py: ") as refused:
        run_tune_request(request, tmp_path / "out", progress=False)
    assert "--out" in str(refused.value.hint)


def test_an_interrupted_experiment_still_answers() -> None:
    training = FakeTraining({"channels_last": 0.8})
    training.interrupt_after = 5
    tuned = training.tuning()
    assert tuned.interrupted
    assert any("Interrupted" in note for note in judge(tuned, "t").notes)


def test_for_memory_the_largest_saving_is_first_whatever_its_time() -> None:
    training = FakeTraining({"accumulate=2": 0.6, "accumulate=4": 0.5, "bf16": 0.9})
    tuned = training.tuning(goal="memory", only=("memory", "bf16"))
    assert [arm.name for arm in tuned.winners()] == ["accumulate=4", "accumulate=2", "bf16"]


@pytest.mark.parametrize(("losses_known", "tried"), [(True, "bf16"), (False, "foreach")], ids=["workload", "script"])
def test_for_memory_what_saves_it_is_recommended_also_where_it_is_slower(losses_known: bool, tried: str) -> None:
    training = FakeTraining({tried: 1.2})
    training.facts["losses_known"] = losses_known
    training.memory = {tried: 0.7}
    tuned = training.tuning(goal="memory", only=(tried,))
    assert judge(tuned, "t").answer.startswith(f"{tried}: 30.0 % less memory a step; ")


def test_memory_that_cannot_be_measured_is_no_change_that_does_not_help() -> None:
    training = FakeTraining({})
    training.memory = {"": None}
    tuned = training.tuning(goal="memory", only=("foreach",))
    assert judge(tuned, "t").answer == "Cannot tell: the memory of a step could not be measured here."


@pytest.mark.parametrize(
    ("both_time", "both_memory", "best"),
    [(0.5, 0.7, "accumulate=2"), (1.5, 0.4, "accumulate=2 + bf16")],
    ids=["faster alone", "smaller alone"],
)
def test_for_memory_changes_are_combined_by_what_both_save(both_time: float, both_memory: float, best: str) -> None:
    training = FakeTraining({"accumulate=2": both_time, "bf16": both_time})
    training.memory = {"accumulate=2": 0.6, "bf16": 0.8, "accumulate=2 + bf16": both_memory}
    tuned = training.tuning(goal="memory", only=("accumulate=2", "bf16"))
    found = tuned.best()
    assert found is not None
    assert found.name == best
    if found.name == "accumulate=2":
        assert "saves no memory beyond" in tuned.arms["accumulate=2 + bf16"].reason


def test_for_memory_what_a_step_saves_and_what_a_process_saves_are_not_combined() -> None:
    training = FakeTraining({"foreach": 0.9, "isa=avx2": 0.9})
    training.memory = {"foreach": 0.7}
    training.process_memory = {"isa=avx2": 0.5}
    tuned = training.tuning(goal="memory", only=("foreach", "isa=avx2"))
    found = tuned.best()
    assert found is not None
    assert found.name == "isa=avx2"
    assert tuned.arms["isa=avx2 + foreach"].reason.endswith("not comparable")


def test_within_a_loop_nothing_that_needs_a_process_is_tried() -> None:
    training = FakeTraining({"malloc-keep": 0.5, "workers=2": 0.8})
    training.facts["data_share"] = 0.5
    tuned = training.tuning(apart=False)
    assert training.opened == [()]
    assert "process of its own" in tuned.arms["malloc-keep"].reason
    assert tuned.arms["workers=2"].status == "measured"


def test_what_overlaps_is_a_tie() -> None:
    def arm(name: str, centre: float) -> Arm:
        return Arm(name, (name,), pairs=[(math.log(centre) + 0.005 * place, 0) for place in range(-4, 5)])

    ranks = tie_groups([arm("a", 0.700), arm("b", 0.703), arm("c", 0.9)])
    assert ranks == {"a": 1, "b": 1, "c": 3}


def test_the_table_says_what_helps_what_does_not_and_what_was_not_tried() -> None:
    findings = judge(FakeTraining({"channels_last": 0.8, "bf16": 1.3}).tuning(), "title")
    tables = {table.name: table for table in findings.tables}
    assert findings.answer.startswith("channels_last: ")
    assert [row[1] for row in tables["helps"].rows] == ["channels_last"]
    assert {row[0]: row[4] for row in tables["no-gain"].rows}["bf16"] == "slower"
    assert ("tcmalloc", "tcmalloc instead of glibc's malloc", "it is not installed") in tables["untried"].rows
    assert tables["code"].rows[0][0] == "channels_last"
    assert set(findings.frames) >= {"gains"}


@pytest.mark.parametrize(
    ("facts", "name", "reason"),
    [
        ({"conv2d": 0}, "channels_last", "no convolution"),
        ({"channels_last": True}, "channels_last", "already"),
        ({"autocast": True}, "bf16", "already"),
        (
            {"optimizers": [{"kind": "RMSprop", "fused": False, "foreach": False}]},
            "fused",
            "RMSprop has no such update",
        ),
        ({"optimizers": []}, "foreach", "no optimizer"),
        ({"glibc": False}, "malloc-keep", "not glibc"),
        ({"environment": {"MALLOC_ARENA_MAX": "1"}}, "malloc-keep", "already"),
        ({"cpu_capability": "AVX2"}, "isa=avx2", "no AVX-512"),
        ({"loader": None}, "workers=2", "no data loader"),
        ({"data_share": 0.001}, "workers=2", "0.1 % of a step"),
        ({"compiler": None}, "compile", "no C++ compiler"),
        ({"divisible": False}, "accumulate=2", "makes itself"),
        ({"threads": 1}, "bind", "one thread"),
        ({}, "jemalloc", "not installed"),
        (
            {"jemalloc": "/l/libjemalloc.so.2", "environment": {"LD_PRELOAD": "/l/libjemalloc.so.2"}},
            "jemalloc",
            "runs on",
        ),
        ({"interop_threads": 1}, "interop=1", "one already"),
    ],
)
def test_a_change_that_does_not_apply_says_why(facts: Mapping[str, Any], name: str, reason: str) -> None:
    assert reason in all_changes({**FACTS, **facts})[name].refused


def test_more_threads_than_cores_are_not_offered_and_fewer_are() -> None:
    names = set(all_changes({**FACTS, "cores": 2, "physical_cores": 2, "threads": 8}))
    assert {"threads=1", "threads=2"} <= names
    assert not names & {"threads=4", "threads=8"}


def test_names_groups_and_goals_choose_changes_and_an_unknown_one_is_refused() -> None:
    known = all_changes(FACTS).values()
    allocators = select_changes(known, "time", ("allocator",), ("tcmalloc", "jemalloc"))
    assert [change.name for change in allocators] == ["malloc-keep"]
    assert all(change.goal == "time" for change in select_changes(known, "time", (), ()))
    with pytest.raises(UnknownName, match="chanels_last"):
        select_changes(known, "time", ("chanels_last",), ())


def test_every_change_has_code_to_paste_and_a_title() -> None:
    for change in all_changes({**FACTS, "tcmalloc": "/usr/lib/libtcmalloc.so", "large_cores": [2, 3]}).values():
        assert change.code
        assert change.title
        assert change.at_start or change.switch is not None or change.refused, change.name
        assert change.environment or change.switch is not None or change.refused, change.name


def test_what_a_large_loss_hides_is_tried_again_beside_its_cure() -> None:
    class Hiding(FakeTraining):
        """channels_last helps only with two threads: with more the training waits for them."""

        def ratio(self, names: tuple[str, ...]) -> float:
            plain = 0.1 if "threads=2" in names else 1.0
            return plain * (0.8 if {"threads=2", "channels_last"} <= set(names) else 1.0)

    best = Hiding({}).tuning(only=("threads=2", "channels_last", "fused")).best()
    assert best is not None
    assert best.changes == ("threads=2", "channels_last")


def test_where_losses_cannot_be_compared_what_rounds_numbers_is_listed_and_not_recommended() -> None:
    training = FakeTraining({"bf16": 0.7, "channels_last": 0.9})
    training.facts["losses_known"] = False
    tuned = training.tuning(only=("bf16", "channels_last"))
    best = tuned.best()
    assert best is not None
    assert best.changes == ("channels_last",)
    findings = judge(tuned, "t")
    helps = next(table for table in findings.tables if table.name == "helps")
    assert [row[1] for row in helps.rows] == ["bf16", "channels_last"]
    assert any("bf16: not recommended" in note for note in findings.notes)
    assert "bf16 takes 29.9 % [29.3, 30.3] less time" in findings.answer
    assert "compare the loss" in findings.answer
    (other,) = (table for table in findings.tables if table.name == "other-code")
    assert "autocast" in str(other.rows[0][1])


def test_where_only_what_rounds_numbers_helps_the_answer_says_so_before_anything_else() -> None:
    training = FakeTraining({"bf16": 0.7})
    training.facts["losses_known"] = False
    findings = judge(training.tuning(only=("bf16", "channels_last")), "t")
    assert findings.answer.startswith("bf16 takes 29.9 % [29.3, 30.3] less time, but rounds numbers")
    assert findings.answer.endswith("channels_last is not certain to help.")
    alone = judge(training.tuning(only=("bf16",)), "t").answer
    assert alone.startswith("bf16 takes 30.2 % [29.7, 30.7] less time, but rounds numbers")
    assert alone.endswith("before you keep it.")


def test_a_combination_that_may_still_gain_is_not_said_to_add_nothing_and_gets_more_pairs() -> None:
    noisy = FakeTraining({"channels_last": 0.5, "fused": 0.97}, noise=0.05).tuning(only=("channels_last", "fused"))
    together = noisy.arms["channels_last + fused"]
    assert len(together.pairs) > 8
    assert together.over or together.reason.startswith("cannot tell whether fused adds to channels_last (")
    quiet = FakeTraining({"channels_last": 0.5, "fused": 1.0}).tuning(only=("channels_last", "fused"))
    assert quiet.arms["channels_last + fused"].reason.startswith("fused adds nothing to channels_last (")


def test_what_is_surely_slower_alone_is_in_no_combination() -> None:
    tuned = FakeTraining({"channels_last": 0.5, "fused": 1.5}).tuning(only=("channels_last", "fused"))
    assert "channels_last + fused" not in tuned.arms


def test_changes_whose_gains_surely_differ_are_no_tie_though_their_intervals_overlap() -> None:
    def arm(name: str, logs: Sequence[float]) -> Arm:
        return Arm(name, (name,), pairs=[(log, 0) for log in logs], status="measured")

    errors = (-0.05, -0.04, -0.02, 0.0, 0.02, 0.04, 0.05)
    fused = arm("fused", [-0.30 + error for error in errors])
    foreach = arm("foreach", [-0.24 + error for error in errors])
    assert fused.interval()[2] > foreach.interval()[1]
    ranks = tie_groups([fused, foreach])
    assert ranks["fused"] < ranks["foreach"]


def test_a_gain_whose_interval_says_nothing_has_none() -> None:
    arm = Arm("bf16", ("bf16",), pairs=[(0.0, 0), (-2.0, 0)])
    gain, low, high = gains(arm)
    assert gain is not None
    assert (low, high) == (None, None)
    assert gains(Arm("bf16", ("bf16",), pairs=[(0.01 * place, 0) for place in range(9)]))[1] is not None


def test_without_a_confidence_interval_no_gain_is_shown_and_nothing_is_ranked() -> None:
    sure = [(math.log(1.3) + 0.005 * place, 0) for place in range(-4, 5)]
    measured = {
        "slow": Arm("slow", ("slow",), pairs=sure, status="measured"),
        "one": Arm("one", ("one",), pairs=[(math.log(0.1), 0)], status="measured"),
        "two": Arm("two", ("two",), pairs=[(math.log(0.05), 0)], status="measured"),
    }
    tuned = FakeTraining({}).tuning()
    tuned.arms = measured
    findings = judge(tuned, "title")
    rows = next(table for table in findings.tables if table.name == "no-gain").rows
    assert [row[0] for row in rows] == ["slow", "one", "two"]
    assert [row[1:4] for row in rows[1:]] == [(None, None, None)] * 2
    assert all(str(row[4]).startswith("cannot tell") for row in rows[1:])
    assert findings.frames["gains"].filter(change="two")["gain"].to_list() == [None]


HOSTILE: dict[str, Any] = {
    "no object": [1],
    "a change that there is not": {"name": "x", "changes": ["rm -rf /"], "status": "measured", "pairs": [[0.1, 0]]},
    "a name of another file": {"name": "../x", "changes": ["fused"]},
    "pairs of any kind": {"name": "fused", "changes": ["fused"], "status": "measured", "pairs": [["a", {}]]},
    "no end of pairs": {"name": "fused", "changes": ["fused"], "pairs": [[0.0, 0]] * 20_000},
    "numbers without bounds": {"name": "fused", "changes": ["fused"], "pairs": [[1e300, 0]] * 8},
    "measured without pairs": {"name": "fused", "changes": ["fused"], "status": "measured"},
    "losses of any kind": {"name": "fused", "changes": ["fused"], "losses": ["x"], "as_is_losses": {}},
    "unhashable": {"name": "fused", "changes": [["fused"]], "at_start": [[]]},
    "no name": {"changes": ["fused"]},
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_somebody_else_put_into_the_folder_of_an_experiment_is_measured_again(
    hostile: str, tmp_path: Path
) -> None:
    folder = StudyFolder(tmp_path / "s", "tune", {})
    for name in ("fused", "x", "final", "progress"):
        (folder.path / "cells" / f"{name}.json").write_text(json.dumps(HOSTILE[hostile]), encoding="utf-8")
    os.mkfifo(folder.path / "cells" / "foreach.json")
    (folder.path / "cells" / "bf16.json").symlink_to("fused.json")
    tuned = FakeTraining({"fused": 0.8}).tuning(
        store=ExperimentStore(folder.store_result, folder.results()), only=("fused",)
    )
    assert set(tuned.arms) <= {"fused", "final"}
    assert judge(tuned, "it").answer.startswith("fused: ")


class OtherPeaks(FakeTraining):
    """Peaks of processes that begin with changes, one after another; the last of them from then on."""

    def __init__(self, peaks: Sequence[float]) -> None:
        super().__init__({})
        self.peaks = list(peaks)

    def open_training(self, changes: Sequence[Change], facts: Mapping[str, Any]) -> FakePlace:
        if changes:
            self.process_memory = {changes[0].name: self.peaks.pop(0) if len(self.peaks) > 1 else self.peaks[0]}
        return super().open_training(changes, facts)


def test_for_memory_a_peak_that_was_lower_in_some_processes_by_chance_is_no_saving() -> None:
    tuned = OtherPeaks([1.004, 0.985]).tuning(goal="memory", only=("malloc-keep",))
    assert tuned.winners() == []
    assert tuned.best() is None
    assert saving(tuned.arms["malloc-keep"]) < 0


def test_for_memory_one_couple_of_processes_is_no_certain_saving() -> None:
    tuned = OtherPeaks([0.8]).tuning(goal="memory", only=("malloc-keep",))
    arm = tuned.arms["malloc-keep"]
    assert tuned.winners() == [arm]
    arm.pairs = arm.pairs[:4]
    assert tuned.winners() == []
    assert "run it longer" in judge(tuned, "t").answer


def test_for_memory_the_check_at_the_end_is_what_the_sentence_says_and_can_refute() -> None:
    less = OtherPeaks([0.8, 0.8, 0.8, 0.9]).tuning(goal="memory", only=("malloc-keep",))
    assert judge(less, "t").answer.startswith("malloc-keep: 10.0 % less memory of the process; ")
    assert "measured again" in judge(less, "t").answer
    none = OtherPeaks([0.8, 0.8, 0.8, 1.01]).tuning(goal="memory", only=("malloc-keep",))
    assert none.best() is None
    assert judge(none, "t").answer == (
        "malloc-keep won the search and took 1.0 % more memory in the check at the end: leave the training as it is."
    )


@pytest.mark.parametrize("loading", [0.0, 0.3, 0.9])
def test_no_pair_begins_when_the_time_is_over(loading: float) -> None:
    training = FakeTraining({"fused": 0.7})
    training.facts["data_share"] = loading
    tuned = training.tuning(seconds=1e-9)
    assert not any(arm.pairs for arm in tuned.arms.values())
    answer = judge(tuned, "t").answer
    assert answer.startswith("Nothing could be tried: run it longer (--minutes). No time was left to try")


def test_the_start_of_a_training_is_none_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(FakeTraining):
        def open_training(self, changes: Any, facts: Mapping[str, Any]) -> Any:
            now[0] += 0 if changes else 60 * 10**9
            return super().open_training(changes, facts)

    now = [0]
    monkeypatch.setattr(experiment, "monotonic_ns", lambda: now[0])
    tuned = Slow({"fused": 0.7}).tuning(seconds=30.0, only=("fused",))
    assert len(tuned.arms["fused"].pairs) >= 6


def test_where_a_short_script_was_started_again_for_much_of_the_time_the_answer_says_so() -> None:
    class Short(FakePlace):
        def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
            return {**super().ask(limit_s, **command), **({"restart_s": 5.0} if command["do"] == "block" else {})}

    class ShortTraining(FakeTraining):
        def open_training(self, changes: Any, facts: Mapping[str, Any]) -> FakePlace:
            return Short(self, tuple(change.name for change in changes))

    def notes(training: FakeTraining) -> str:
        return " ".join(judge(training.tuning(seconds=100.0, only=("fused",)), "t").notes)

    assert "which took" in notes(ShortTraining({}))
    assert "started again" not in notes(FakeTraining({}))
