"""A comparison and a check as people and scripts get them: terminal, page, JSON, Markdown, notebook, exit codes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.analysis.powered import channel
from tests.analysis.test_compare import SLOW, workload
from tests.fabricate import Op, Sampled, fabricate_run
from tests.patience import HANG_S
from tests.report.stored_runs import simulated_board

import stepscope
from stepscope.__main__ import main
from stepscope.analysis.compare import compare
from stepscope.analysis.compare.regression_check import check
from stepscope.report.comparison import markdown, render

needs_report = pytest.mark.skipif(importlib.util.find_spec("altair") is None, reason="needs the extra 'report'")
HOSTILE = "</script><img src=x onerror=alert(1)>[red]"


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    return [
        fabricate_run(tmp_path / "a", steps=40, noise=0.01),
        fabricate_run(
            tmp_path / "b", steps=40, noise=0.01, ops=(*SLOW, Op("aten::x", HOSTILE, "forward", 900)), seed=1
        ),
    ]


def screen(paths: list[Path], width: int = 110, verbose: bool = True) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(render(compare(paths), verbose=verbose))
    return captured.get()


def exit_code(*arguments: str) -> int:
    try:
        return main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def test_the_terminal_names_the_parts_and_marks_what_is_worse(pair: list[Path]) -> None:
    said = screen(pair)
    assert re.search(r"Step time\s+A\s+16", said)
    assert "worse" in said
    assert HOSTILE[:20] in said
    assert "time of a step by operator" in said
    assert max(len(line) for line in screen(pair, 80).splitlines()) <= 80


def test_the_short_answer_says_which_is_faster_first_and_fits_80_columns_and_a_screen(pair: list[Path]) -> None:
    lines = screen(pair, 80, verbose=False).splitlines()
    assert re.search(r"^\s*$\nB is [\d.]+x slower than A", "\n".join(lines[:8]), re.MULTILINE)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert "kind" not in "".join(lines[8:])
    assert re.search(r"Step time\s+16\S* ms\s+\S+ ms\s+[\d.]+ \[[\d., ]+\]\s+worse", "\n".join(lines))


def test_each_of_several_gpus_has_a_row_of_its_own(tmp_path: Path) -> None:
    t_ns = np.arange(0, 800_000_000, 10_000_000)
    paths = []
    for name, sizes in (("a", (1e9, 2e9)), ("b", (1e9, 4e9))):
        gpus = (
            Sampled(channel(f"m{k}", "gpu_memory", f"gpu:{k}"), t_ns, 0 * t_ns + size) for k, size in enumerate(sizes)
        )
        paths.append(fabricate_run(tmp_path / name, steps=40, sampled=tuple(gpus)))
    rows = [line for line in screen(paths, verbose=False).splitlines() if "GPU memory" in line]
    assert [re.findall(r"gpu \d|[\d.]+ GB", row) for row in rows] == [
        ["gpu 0", "1 GB", "1 GB"],
        ["gpu 1", "2 GB", "4 GB"],
    ]


def test_two_runs_that_are_alike_are_called_the_same_and_no_part_is_listed(tmp_path: Path) -> None:
    paths = [fabricate_run(tmp_path / name, steps=40, noise=0.2, seed=seed) for name, seed in (("a", 4), ("b", 5))]
    said = screen(paths, 80, verbose=False)
    assert "No difference in step time" in said
    assert "same" in said
    assert "by module" not in said


@needs_report
def test_the_page_has_every_part_and_no_markup_of_a_name(pair: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert exit_code("compare", *map(str, pair), "--html", "--out", str(out)) == 0
    page = out.read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert "aten::mkldnn_convolution" in page
    assert page.count("<svg") >= 2
    assert not re.search(r"(src|href)=[\"']?https?:", page)


@needs_report
def test_a_page_over_several_settings_has_their_mean_and_explains_each(tmp_path: Path) -> None:
    for batch in (16, 32):
        fabricate_run(tmp_path / "a", batch=batch, header=workload(batch))
        fabricate_run(tmp_path / "b", batch=batch, header=workload(batch), ops=SLOW)
    out = tmp_path / "page.html"
    assert exit_code("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--html", "--out", str(out)) == 0
    page = out.read_text(encoding="utf-8")
    assert "over all settings" in page
    assert "fabricated batch 32 sgd float32: Time" in page


def test_json_has_every_number(pair: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("compare", *map(str, pair), "--json", "--by", "phase") == 0
    content = json.loads(capsys.readouterr().out)
    assert {row["metric"] for row in content["quantities"]} >= {"step_time", "throughput", "peak_memory"}
    phases = [one for one in content["settings"][0]["explanations"] if one["what"] == "time"]
    assert phases[0]["parts"][0]["name"] == "forward"


@pytest.mark.parametrize(
    "wrong", [("--json", "--html"), ("--out", "x.html"), ("--by", "modul"), ("--per", "epoch"), ("--attribution", "x")]
)
def test_options_that_make_no_sense_are_refused(wrong: tuple[str, ...], pair: list[Path]) -> None:
    assert exit_code("compare", *map(str, pair), *wrong) == 2


@pytest.mark.parametrize("unused", [("--html", "--by", "module"), ("--html", "--top", "3"), ("--json", "--top", "3")])
def test_options_that_would_choose_nothing_are_refused(
    unused: tuple[str, ...], pair: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("compare", *map(str, pair), *unused) == 2
    assert f"{unused[1]} chooses parts on a terminal" in capsys.readouterr().err


@pytest.mark.parametrize("unused", [("--by", "module"), ("--what", "time"), ("--top", "3")])
def test_of_two_sweeps_the_terminal_refuses_to_choose_parts_that_it_does_not_show(
    unused: tuple[str, ...], tmp_path: Path
) -> None:
    for batch in (16, 32):
        fabricate_run(tmp_path / "a", batch=batch, header=workload(batch))
        fabricate_run(tmp_path / "b", batch=batch, header=workload(batch))
    assert exit_code("compare", str(tmp_path / "a"), str(tmp_path / "b")) == 0
    assert exit_code("compare", str(tmp_path / "a"), str(tmp_path / "b"), *unused) == 2


def test_operators_that_are_asked_for_beside_layers_are_shown(
    pair: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("compare", *map(str, pair), "--by", "module", "--by", "kind") == 0
    assert "time of a step by operator" in capsys.readouterr().out


def test_a_page_that_cannot_be_written_says_so(pair: list[Path], tmp_path: Path) -> None:
    expected = 5 if importlib.util.find_spec("altair") else 3
    assert exit_code("compare", *map(str, pair), "--html", "--out", str(tmp_path / "no" / "x.html")) == expected


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (("--max-slowdown", "5%"), 10),
        (("--max-slowdown", "80"), 0),
        (("--max-energy", "5%"), 11),
        (("--max-energy", "5%", "--unsure-passes"), 0),
        (("--max-slowdown", "-5%"), 2),
        (("--max-slowdown", "five"), 2),
    ],
)
def test_the_exit_code_of_a_check_is_its_outcome(limits: tuple[str, ...], code: int, pair: list[Path]) -> None:
    assert exit_code("check", str(pair[1]), "--against", str(pair[0]), *limits) == code


def test_the_markdown_goes_to_the_file_and_to_the_summary_of_a_job(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    out = tmp_path / "check.md"
    exit_code("check", str(pair[1]), "--against", str(pair[0]), "--markdown", str(out))
    text = out.read_text(encoding="utf-8")
    assert summary.read_text(encoding="utf-8") == f"before\n{text}"
    assert "### Stepscope: regression" in text
    assert "| Step time |" in text


def test_names_in_markdown_are_escaped(tmp_path: Path) -> None:
    paths = [fabricate_run(tmp_path, steps=20, header={"id": f"a|b<b>*{n}*"}) for n in range(2)]
    assert "a\\|b\\<b\\>\\*0\\*" in markdown(check(paths[0], paths[1], {"time": 0.05}))


def test_a_check_as_json_has_the_numbers_behind_it(pair: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("check", str(pair[1]), "--against", str(pair[0]), "--json")
    content = json.loads(capsys.readouterr().out)
    assert content["outcome"] == "regression"
    assert content["judged"][0]["ratio"] > 1.2


@needs_report
def test_a_notebook_shows_a_run_and_a_comparison_escaped_and_without_scripts(pair: list[Path]) -> None:
    for shown in (stepscope.Run(pair[1]), stepscope.compare(pair)):
        html = shown._repr_html_()
        assert html is not None
        assert "<img" not in html
        assert "<script" not in html
        assert len(html) < 40_000
    run_html = stepscope.Run(pair[1])._repr_html_() or ""
    assert "aten::mkldnn_convolution" in run_html
    assert stepscope.Run(pair[1]).verdict().sentence.split(":")[0] in run_html


@needs_report
@pytest.mark.parametrize("how", [{"ops": ()}, {"steps": 0}, {"samples": False, "status": "failed"}, {"steps": 4}])
def test_a_notebook_shows_a_run_that_lacks_things(how: dict[str, object], tmp_path: Path) -> None:
    html = stepscope.Run(fabricate_run(tmp_path, **how))._repr_html_()  # type: ignore[arg-type]
    assert html is not None
    assert html.startswith("<div")


@needs_report
def test_a_notebook_says_of_simulated_numbers_that_they_are_simulated(tmp_path: Path) -> None:
    html = stepscope.Run(simulated_board(tmp_path))._repr_html_() or ""
    assert "SIMULATED sensors: jetson-tx2" in html
    assert re.search(r"<em>simulated</em> Energy per step.*?<em>simulated</em> Hottest zone", html, re.DOTALL)


@needs_report
def test_a_notebook_shows_the_ratios_over_all_settings_and_the_notes_of_two_sweeps(tmp_path: Path) -> None:
    for batch in (16, 32):
        fabricate_run(tmp_path / "a", batch=batch, header=workload(batch))
        fabricate_run(tmp_path / "b", batch=batch, header=workload(batch), ops=SLOW)
    compared = stepscope.compare([tmp_path / "a", tmp_path / "b"])
    html = compared._repr_html_() or ""
    assert "Over 2 shared settings." in html
    assert "Geometric mean over the settings." in html
    assert "Side by side" not in html
    assert compared.notes[0] in html


def test_without_what_draws_it_a_notebook_shows_the_plain_text(
    pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.report.html._can_draw", lambda: False)
    assert stepscope.Run(pair[0])._repr_html_() is None
    assert stepscope.compare(pair)._repr_html_() is None


@needs_report
def test_a_run_shows_as_html_whatever_was_touched_before(pair: list[Path]) -> None:
    script = "from stepscope.analysis.run import Run\nprint((Run({!r})._repr_html_() or '').startswith('<div'))"
    done = subprocess.run(
        [sys.executable, "-c", script.format(str(pair[0]))], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout == "True\n"
