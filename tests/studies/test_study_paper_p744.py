"""The 2020 project's statements: the heap by call site, and verdicts that follow from tables and can go both ways."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.analysis.results import Findings, ResultTable
from stepscope.api.requests import STUDIES
from stepscope.errors import UsageError
from stepscope.experiments.breakdown.study import TIME_COLUMNS
from stepscope.experiments.engine.engine import Plan, Point, answer_study, joined_plan
from stepscope.experiments.kernels.rates import HERE, SCHEMA
from stepscope.experiments.kernels.study import PAIR_COLUMNS
from stepscope.experiments.paper_p744 import MOBILENET, RESNET, PaperP744
from stepscope.experiments.paper_p744.study import (
    FAILS,
    HOLDS,
    OPEN,
    UNMEASURED,
    _judge_operators,
    count_heap,
    heap_findings,
    project_findings,
    sum_by_site,
)
from stepscope.experiments.partial.study import SAVING_COLUMNS, WAY_COLUMNS
from stepscope.report.charts.operators import paper_p744_charts


@pytest.fixture(scope="module")
def lenet() -> dict[str, Any]:
    return count_heap({"workload": "lenet", "batch": 32})


def heap(peak: int, sites: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """A heap with (bytes at the peak, bytes allocated in the step) by call site."""
    live = [[site, "saved", own[0]] for site, own in sites.items()]
    allocated = [[site, "phase", own[1]] for site, own in sites.items()]
    return {"peak": peak, "live": live, "allocated": allocated, "over_step": [[0, "convolution", peak]]}


LIKE_THE_PROJECT = {"convolution": (60, 600), "batch norm": (30, 300), "activation": (10, 100)}


def results(mobilenet: int = 440, resnet: int = 300, sites: dict[str, tuple[int, int]] | None = None) -> dict[str, Any]:
    of = sites or LIKE_THE_PROJECT
    networks = {"lenet": 4, RESNET: resnet, MOBILENET: mobilenet}
    return {
        name: {"status": "ok", "reason": None, "training": heap(peak, of), "inference": heap(peak // 4, of)}
        for name, peak in networks.items()
    }


def verdicts(found: dict[str, Findings], request: PaperP744 | None = None) -> dict[str, tuple[str, str]]:
    table = project_findings(request or PaperP744(), found).tables[0]
    return {f"{row[0]}: {row[1]}": (str(row[3]), str(row[4])) for row in table.rows}


def test_the_heap_by_call_site_and_by_holder_adds_up_to_the_peak(lenet: dict[str, Any]) -> None:
    for kind in ("training", "inference"):
        own = lenet[kind]
        assert sum(sum_by_site(own["live"]).values()) == own["peak"]
        totals: dict[int, int] = {}
        for at, _, size in own["over_step"]:
            totals[at] = totals.get(at, 0) + size
        assert max(totals.values()) == own["peak"], "the picture keeps the peak"
    assert lenet["inference"]["peak"] < lenet["training"]["peak"]
    first = 32 * 6 * 28 * 28 * 4  # B, of the first convolution's output: a step of inference allocates it once
    assert first <= sum_by_site(lenet["inference"]["allocated"])["convolution"] < 5 * first  # blocks depend on the CPU
    assert (
        max(sum_by_site(lenet["training"]["live"]), key=lambda name: sum_by_site(lenet["training"]["live"])[name])
        == "convolution"
    )


def test_a_device_that_behaves_as_the_project_said_gives_its_statements_on_memory() -> None:
    said = verdicts({"heap": heap_findings(PaperP744(), results())})
    of_memory = {name: verdict for name, (verdict, _) in said.items() if name.startswith("figures 2 to")}
    assert len(of_memory) == 5
    assert set(of_memory.values()) == {HOLDS}


def test_a_network_that_does_the_opposite_is_named_and_is_enough() -> None:
    said = verdicts({"heap": heap_findings(PaperP744(), results(mobilenet=200))})
    assert said["figures 2 to 6: MobileNetV1 holds more than ResNet18 in training"][0] == FAILS
    other = results()
    other[RESNET]["training"] = heap(300, {"convolution": (60, 600), "activation": (30, 300), "batch norm": (0, 200)})
    said = verdicts({"heap": heap_findings(PaperP744(), other)})
    verdict, because = said["figures 2 to 5: batch norm allocates the second most, at the peak"]
    assert verdict == FAILS
    assert because == "resnet18, training: activation"


def test_what_is_equal_shares_its_place_and_what_holds_nothing_has_none() -> None:
    equal = {"convolution": (60, 600), "batch norm": (30, 300), "activation": (30, 300)}
    said = verdicts({"heap": heap_findings(PaperP744(), results(sites=equal))})
    assert said["figures 2 to 5: batch norm allocates the second most, over the whole step"][0] == HOLDS
    freed = {"convolution": (60, 600), "batch norm": (0, 300)}
    said = verdicts({"heap": heap_findings(PaperP744(), results(sites=freed))})
    assert said["figures 2 to 5: batch norm allocates the second most, at the peak"][0] == FAILS


def test_a_network_that_cannot_be_counted_is_no_verdict_and_is_named() -> None:
    given = results()
    given[MOBILENET] = {"status": "refused", "reason": "fake tensors stopped"}
    found = heap_findings(PaperP744(), given)
    assert (
        verdicts({"heap": found})["figures 2 to 6: MobileNetV1 holds more than ResNet18 in training"][0] == UNMEASURED
    )
    assert any("fake tensors stopped" in note for note in found.notes)


def test_the_plan_that_trains_nothing_says_which_plan_measures_the_rest() -> None:
    said = verdicts({"heap": heap_findings(PaperP744(), results())})
    rest = {name: of for name, of in said.items() if not name.startswith("figures 2 to")}
    assert {verdict for verdict, _ in rest.values()} == {UNMEASURED}
    assert {because for _, because in rest.values()} == {"--plan hour measures it", "--plan night trains it"}


def _table(name: str, columns: tuple[str, ...], *rows: tuple[Any, ...]) -> ResultTable:
    return ResultTable(name, name, columns, rows)


def _convolutions(seven_to_five: float, small_to_large: float, half: float = 0.02) -> Findings:
    """Times of convolutions: of 7x7 against 5x5 for a useful FLOP, and of batch 4 against batch 32."""
    rows = []
    for part in ("forward", "forward and both"):
        for kernel in (3, 5, 7):
            for batch in (4, 32):
                flops = kernel**2 * batch * 1e9
                rate = (seven_to_five if kernel == 7 else 1.0) * (small_to_large if batch == 4 else 1.0)
                ns = flops * rate / 1e3
                for axis, at, beside in (
                    ("kernel", kernel, f"batch {batch}, channels 32, size 256"),
                    ("batch", batch, f"kernel {kernel}, channels 32, size 256"),
                ):
                    times = {"ns": ns, "low_ns": ns * (1 - half), "high_ns": ns * (1 + half), "flops": flops}
                    rows.append({"source": HERE, "part": part, "axis": axis, "at": at, "beside": beside, **times})
    pair = (HERE, "batch 4, channels 32, size 256", "forward", 1.0, 2.0, 4.0, 0.75, 0.7, 0.8, "holds")
    return Findings(
        "k", "", (_table("five-three", PAIR_COLUMNS, pair),), frames={"axes": pl.DataFrame(rows, schema=SCHEMA)}
    )


@pytest.mark.parametrize(
    ("seven", "batch", "half", "penalty", "helps"),
    [(1.8, 1.3, 0.02, HOLDS, HOLDS), (0.8, 0.9, 0.02, FAILS, FAILS), (1.02, 1.06, 0.05, OPEN, OPEN)],
)
def test_sentences_on_convolutions_follow_the_ends_of_the_intervals(
    seven: float, batch: float, half: float, penalty: str, helps: str
) -> None:
    found = {"heap": heap_findings(PaperP744(), results()), "figures-7-to-9": _convolutions(seven, batch, half)}
    said = verdicts(found, PaperP744(plan_="hour"))
    assert {verdict for name, (verdict, _) in said.items() if "a kernel beyond 5x5" in name} == {penalty}
    of_batch = {verdict for name, (verdict, _) in said.items() if "a larger batch" in name}
    assert of_batch == {helps}
    assert [verdict for name, (verdict, _) in said.items() if "then a 3x3" in name] == [HOLDS]


def test_operators_are_compared_by_their_intervals() -> None:
    def of(conv: float, norm: float, half: float, **others: float) -> Findings:
        times = {"convolution": conv, "batch norm": norm, "whole step": conv + norm, **others}
        rows = [
            ("resnet18-c32", "training", name, ms, ms * (1 - half), ms * (1 + half), 1.0) for name, ms in times.items()
        ]
        return Findings("b", "", (_table("time", TIME_COLUMNS, *rows),))

    base = {"heap": heap_findings(PaperP744(), results())}
    name = "figure 1: resnet18-c32: convolution takes at least twice the time of the next operator"
    assert verdicts({**base, "figure-1": of(10, 2, 0.1)})[name][0] == HOLDS
    assert verdicts({**base, "figure-1": of(10, 8, 0.1)})[name][0] == FAILS
    assert verdicts({**base, "figure-1": of(10, 4.9, 0.1)})[name][0] == OPEN
    beside = {"framework overhead": 9.0, "optimizer": 8.0, "code of the layers": 7.0, "data": 6.0}  # no operators
    assert verdicts({**base, "figure-1": of(10, 2, 0.1, **beside)})[name][0] == HOLDS


def _parts(whole: tuple[float, float, float], own: tuple[float, float, float], ms: float, memory: float) -> Findings:
    ways = (
        ("all", 5, 100.0, *whole, 1.0, 1.0, 1.0, 9.0, None),
        ("filters 60 %", 5, 60.0, *own, 1.0, 1.0, 1.0, 9.0, None),
    )
    savings = (
        ("all", 1.0, 2.0, 0.0, 10.0, 9.9, 10.1, 0.0, 1.0, 0.0, 0.0),
        ("filters 60 %", 1.0, 2.0, 0.0, ms, ms * 0.99, ms * 1.01, 0.0, 1.0, 0.0, memory),
    )
    return Findings(
        "p",
        "",
        (_table("ways", (*WAY_COLUMNS, "unbeaten in"), *ways), _table("savings", SAVING_COLUMNS, *savings)),
        notes=("data: digits",),
    )


def test_what_training_a_part_loses_and_saves_is_judged_by_both_intervals() -> None:
    base = {"heap": heap_findings(PaperP744(), results())}
    like = verdicts({**base, "figure-10": _parts((87, 86.5, 87.5), (84, 83.5, 84.5), 4.0, 14.0)})
    assert [verdict for name, (verdict, _) in like.items() if name.startswith("figure 10")] == [HOLDS] * 3
    unlike = verdicts({**base, "figure-10": _parts((87, 86.5, 87.5), (60, 59.5, 60.5), 9.0, 60.0)})
    assert [verdict for name, (verdict, _) in unlike.items() if name.startswith("figure 10")] == [FAILS] * 3
    wide = verdicts({**base, "figure-10": _parts((87, 80, 94), (84, 77, 91), 4.9, 14.0)})
    assert next(of for name, of in wide.items() if "loses little" in name)[0] == OPEN
    harder = verdicts({**base, "figure-12": _parts((87, 86.5, 87.5), (70, 69.5, 70.5), 4.0, 14.0)})
    assert next(of for name, of in harder.items() if name.startswith("figure 12"))[0] == HOLDS


def test_the_drop_of_a_hard_set_is_judged_for_the_projects_code_and_for_its_words() -> None:
    rows = (
        ("all", 5, 100.0, 43.0, 42.0, 44.0, 1.0, 1.0, 1.0, 9.0, None),
        ("filters 20 %", 5, 20.0, 41.0, 40.0, 42.0, 1.0, 1.0, 1.0, 9.0, None),
        ("cumulative 20 %", 5, 20.0, 31.0, 30.0, 32.0, 1.0, 1.0, 1.0, 9.0, None),
    )
    parts = Findings("p", "", (_table("ways", (*WAY_COLUMNS, "unbeaten in"), *rows),), notes=("data: cifar-10",))
    said = verdicts({"heap": heap_findings(PaperP744(), results()), "figure-11": parts})
    judged = {name: of[0] for name, of in said.items() if name.startswith("figure 11")}
    assert {name.partition("(")[2]: verdict for name, verdict in judged.items()} == {
        "filters 20 %, as it describes)": FAILS,
        "cumulative 20 %, as its code does)": HOLDS,
    }


def test_options_of_measuring_plans_are_refused_where_nothing_is_measured() -> None:
    with pytest.raises(UsageError, match="--import belongs to a plan that measures"):
        PaperP744(import_=Path("tables"))
    with pytest.raises(UsageError, match="--data belongs to a plan that measures"):
        PaperP744(data="mnist")


def test_the_longer_plans_make_the_studies_of_each_figure_once() -> None:
    dry, hour, night = (PaperP744(plan_=name, threads=1).plan().points for name in ("dry", "hour", "night"))
    assert [point.id for point in dry] == ["heap-lenet", "heap-resnet18", "heap-mobilenet-v1"]
    assert len({point.id for point in night}) == len(night) > len(hour)
    figures = {point.id.partition("figure")[2].partition("-")[2].partition("-")[0] for point in night}
    assert {"1", "10", "11", "12"} <= figures
    assert not any(point.id.startswith("figure-11") for point in hour)


def test_a_joined_plan_measures_each_point_as_its_part_does_and_judges_each_part_alone(tmp_path: Path) -> None:
    here, seen = Point("a", "in this process"), list[str]()

    def judge(results: Any) -> Findings:
        seen.append(",".join(results))
        return Findings("one", results["a"]["value"], ())

    def refuses(results: Any) -> Findings:
        raise UsageError("nothing was trained")

    parts = {
        "one": Plan([here], judge, measure=lambda point: {"value": f"{point.id} measured"}),
        "two": Plan([Point("a", "of another part")], refuses, measure=lambda point: {"value": "two"}),
    }
    joined = joined_plan(parts, lambda found: Findings("both", f"{found['one'].answer}; {found['two'].notes[0]}", ()))
    assert [point.id for point in joined.points] == ["one-a", "two-a"]
    findings = answer_study(PaperP744(), tmp_path / "study", plan=joined)
    assert findings.answer == "a measured; two: nothing was trained"
    assert seen == ["a"]


def test_the_project_is_drawn_by_call_site(lenet: dict[str, Any]) -> None:
    given = results()
    given["lenet"] = {"status": "ok", "reason": None, **lenet}
    findings = project_findings(PaperP744(), {"heap": heap_findings(PaperP744(), given)})
    charts = paper_p744_charts(findings.frames)
    assert list(charts) == ["heap-over-step"]
    assert "lenet, batch 32" in charts["heap-over-step"][0](800).to_json()


def test_training_in_parts_is_on_the_device_that_was_asked_for_and_its_data_are_pinned() -> None:
    asked = PaperP744(plan_="night", device="cpu")
    assert {part.device for part in PaperP744(plan_="night", device="cuda").partial_requests.values()} == {"cuda"}
    pinned = asked.checked()
    assert isinstance(pinned, PaperP744)
    assert pinned.data is not None
    (judged,) = _judge_operators(PaperP744(plan_="hour", device="cuda"), {})
    assert judged.verdict == "not measured"


@pytest.mark.parametrize("name", [name for name, known in STUDIES.items() if known.charts])
def test_the_charts_of_each_study_are_where_its_command_looks_for_them(name: str) -> None:
    module, _, function = STUDIES[name].charts.partition(":")
    assert callable(getattr(importlib.import_module(f"stepscope.report.charts.{module}"), function))
