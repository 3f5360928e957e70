"""What the view answers, without a socket: the list, pages, comparison, and everything that must be refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from tests.fabricate import fabricate_run

pytest.importorskip("altair")
from stepscope.analysis.run import Run
from stepscope.analysis.summary import write_summary
from stepscope.files import read_json, replace_json
from stepscope.report.live.growing_files import Pace
from stepscope.report.live.run_state import Now
from stepscope.report.view import listing as listing_module
from stepscope.report.view.access import COOKIE, Access, HttpAnswer, is_local_host, is_loopback
from stepscope.report.view.listing import Listing
from stepscope.report.view.site import Site, _fact_rows

HERE = {"Host": "localhost:8321"}
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs, one in a folder below, beside a secret."""
    (tmp_path / "secret.json").write_text('{"schema": 1, "id": "secret"}', encoding="utf-8")
    root = tmp_path / "runs"
    fabricate_run(root, steps=8)
    fabricate_run(root / "board a", steps=8)
    return root


def keys(site: Site) -> list[str]:
    return [row["key"] for row in json.loads(site.answer("/runs.json", HERE).body)["rows"]]


def get(site: Site, target: str, **headers: str) -> HttpAnswer:
    return site.answer(target, {**HERE, **headers})


def test_the_list_has_every_run_below_the_folder(folder: Path) -> None:
    site = Site(folder, Access())
    assert len(keys(site)) == 2
    assert any(key.startswith("board a/") for key in keys(site))
    page = get(site, "/")
    assert page.status == 200
    assert "script-src 'sha256-" in page.all_headers()["Content-Security-Policy"]


def test_a_folder_that_is_a_run_itself_is_listed_and_drawn(tmp_path: Path) -> None:
    site = Site(fabricate_run(tmp_path, steps=8), Access())
    (key,) = keys(site)
    page = get(site, urljoin("http://localhost:8321/", f"/run/{key}").removeprefix("http://localhost:8321"))
    assert page.status == 200
    assert get(site, f"/over-time?run={key}").status == 200


def test_a_run_without_a_report_has_its_steps_and_their_time_in_the_list(folder: Path) -> None:
    rows = json.loads(Site(folder, Access()).answer("/runs.json", HERE).body)["rows"]
    assert not list(folder.rglob("summary.json"))
    assert {(row["steps"], row["step_time_ns"], row["throughput_per_s"]) for row in rows} == {(8, 16_000_000, 1000)}


def test_the_list_has_the_batch_of_a_script_as_its_summary_has_seen_it(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path, header={"workload": {"name": "script"}})
    write_summary(Run(path))
    (row,) = json.loads(Site(tmp_path, Access()).answer("/runs.json", HERE).body)["rows"]
    assert (row["workload"], row["batch_size"]) == ("script", 16)


def test_a_run_is_drawn_once_until_its_files_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def draw(run: Run) -> str:
        drawn.append(run.id)
        return f"<p>{len(drawn)}</p>"

    monkeypatch.setattr("stepscope.report.html.render", draw)
    site = Site(folder, Access())
    key = keys(site)[0]
    address = "/run/" + key.replace(" ", "%20")
    assert get(site, address).body == get(site, address).body == "<p>1</p>"
    (folder / key / "events.jsonl").write_text("{}\n", encoding="utf-8")
    assert get(site, address).body == "<p>2</p>"


def test_ticked_runs_are_compared(folder: Path) -> None:
    site = Site(folder, Access())
    both = "&".join(f"run={key.replace(' ', '%20')}" for key in keys(site))
    assert 'id="sides"' in get(site, f"/compare?{both}").body
    assert get(site, f"/compare?{both}&run=nothing").status == 404
    one = get(site, f"/compare?run={keys(site)[0].replace(' ', '%20')}")
    assert (one.status, one.body.splitlines()[0]) == (409, "one run to compare: 2 to 10 are possible")


@pytest.mark.parametrize(
    "target",
    [
        "/run/../secret.json",
        "/run/..%2fsecret.json",
        "/run/%2e%2e/%2e%2e/etc/passwd",
        "/run//etc/passwd",
        "/run/",
        "/run/.",
        "/live/..",
        "/now/%00",
        "/run/..\\secret.json",
        "/secret.json",
        "/runs",
        "/compare?run=../secret.json&run=/etc",
        "//etc/passwd",
    ],
)
def test_no_address_leads_out_of_the_folder(target: str, folder: Path) -> None:
    answer = get(Site(folder, Access()), target)
    assert answer.status == 404
    assert "secret" not in answer.body


def test_links_that_lead_out_are_neither_listed_nor_followed(folder: Path, tmp_path: Path) -> None:
    outside = fabricate_run(tmp_path / "outside", steps=8)
    (folder / "linked").symlink_to(outside)
    sly = folder / "sly"
    sly.mkdir()
    (sly / "run.json").symlink_to(tmp_path / "secret.json")
    site = Site(folder, Access())
    assert not {"linked", "sly"} & set(keys(site))
    assert "1 link in this folder leads out of it" in get(site, "/").body
    inner = keys(site)[0]
    (folder / inner / "model.json").unlink()
    (folder / inner / "model.json").symlink_to(tmp_path / "secret.json")
    answer = get(site, "/run/" + inner.replace(" ", "%20"))
    assert (answer.status, "secret" in answer.body) == (403, False)


def test_foreign_files_are_passed_over(folder: Path) -> None:
    (folder / "notes.txt").write_text("x", encoding="utf-8")
    (folder / ".hidden").mkdir()
    for name, content in (("a", "[1]"), ("b", "{"), ("c", '{"name": "package"}'), ("d", '{"schema": "1"}')):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(content, encoding="utf-8")
    deep = folder / "e"
    deep.mkdir()
    (deep / "run.json").write_text("[" * 100_000, encoding="utf-8")
    (folder / "pipe").mkdir()
    os.mkfifo(folder / "pipe" / "run.json")  # whoever opens it waits for ever
    (folder / "circle").symlink_to(folder)
    assert len(keys(Site(folder, Access()))) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics": [{"metric": "step_time", "scope": "run", "value": float("nan")}], "board": [], "verdict": 3},
        {"metrics": "x", "steps": "many"},
    ],
)
def test_a_summary_of_any_content_leaves_the_list_whole(wrong: dict[str, object], folder: Path) -> None:
    (folder / keys(Site(folder, Access()))[0] / "summary.json").write_text(json.dumps(wrong), encoding="utf-8")
    site = Site(folder, Access())
    assert len(keys(site)) == 2


def test_a_run_of_a_newer_schema_is_listed_and_says_why_it_is_not_drawn(folder: Path) -> None:
    header = folder / "newer"
    header.mkdir()
    (header / "run.json").write_text('{"schema": 999, "id": "newer", "status": "ok"}', encoding="utf-8")
    site = Site(folder, Access())
    assert "newer" in keys(site)
    answer = get(site, "/run/newer")
    assert answer.status == 409
    assert "schema 999" in answer.body


def test_names_stay_text_on_the_list(tmp_path: Path) -> None:
    fabricate_run(tmp_path, steps=4, header={"workload": {"name": HOSTILE}, "id": HOSTILE})
    page = get(Site(tmp_path, Access()), "/").body
    assert HOSTILE not in page
    assert "<img" not in page


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8321", 200), ("127.0.0.1", 200), ("127.0.0.2:8321", 200), ("[::1]:8321", 200),
        ("LOCALHOST:9", 200), ("", 403), ("127.0.0.1:8321:1", 403), ("::1", 403), ("127.0.0.1@evil", 403),
        ("evil.example", 403), ("evil.example:8321", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil", 403),
        ("0.0.0.0:8321", 403), ("[::1].evil", 403), ("10.0.0.1:8321", 403),
    ],
)  # fmt: skip
def test_only_names_of_this_machine_are_answered_without_a_token(host: str, status: int, folder: Path) -> None:
    assert Site(folder, Access()).answer("/runs.json", {"Host": host}).status == status


def test_a_token_is_needed_where_there_is_one(folder: Path) -> None:
    site = Site(folder, Access("right"))
    assert site.answer("/", HERE).status == 403
    assert site.answer("/?token=wrong", HERE).status == 403
    assert site.answer("/?token=", HERE).status == 403
    assert site.answer("/", {**HERE, "Cookie": f"{COOKIE}=wrong"}).status == 403
    assert site.answer("/", {**HERE, "Cookie": "\x00;=;;"}).status == 403
    assert site.answer("/", {**HERE, "Authorization": "Bearer wrong"}).status == 403
    assert site.answer("/", {**HERE, "Authorization": "Bearer right"}).status == 200
    assert site.answer("/", {"Host": "board.local", "Cookie": f"a=b; {COOKIE}=right"}).status == 200
    assert site.answer("/?token=ä", HERE).status == 403


def test_the_token_moves_from_the_address_into_a_cookie(folder: Path) -> None:
    answer = Site(folder, Access("right")).answer("/compare?run=a&token=right&run=b", HERE)
    assert (answer.status, answer.headers["Location"]) == (303, "/compare?run=a&run=b")
    assert re.search(r"HttpOnly; SameSite=Strict", answer.headers["Set-Cookie"])


@pytest.mark.parametrize(
    "target", ["//evil.example/?token=right", "/%2fevil.example?token=right", "/%0d%0aX:?token=right"]
)
def test_a_redirect_stays_here(target: str, folder: Path) -> None:
    place = Site(folder, Access("right")).answer(target, HERE).headers["Location"]
    assert place.startswith("/")
    assert not place.startswith("//")
    assert "\n" not in place


def test_a_long_address_is_refused(folder: Path) -> None:
    assert get(Site(folder, Access()), "/" + "a" * 20_000).status == 414


def test_a_running_run_is_followed_and_an_ended_one_sent_to_its_page(tmp_path: Path) -> None:
    fabricate_run(tmp_path, steps=8, status=None, header={"pid": os.getpid(), "planned_steps": 100})
    site = Site(tmp_path, Access())
    (key,) = keys(site)
    now = json.loads(get(site, f"/now/{key}").body)
    assert now["status"] == "running"
    assert ["Steps", "8 of 100"] in now["rows"]
    assert get(site, f"/live/{key}").status == 200
    header = tmp_path / key / "run.json"
    header.write_text(header.read_text(encoding="utf-8").replace('"running"', '"ok"'), encoding="utf-8")
    assert json.loads(get(site, f"/now/{key}").body)["ended"]
    assert get(site, f"/live/{key}").headers["Location"] == f"/run/{key}"
    site.close()


def test_a_running_run_says_whose_memory_it_is_and_what_slows_it_down() -> None:
    stated = {"status": "running", "processes": True, "clocks": (("core 0", 2e9),), "delayed": 0.5}
    names = ("cores", "accelerators", "rails", "accelerator_memory", "temperatures", "throttled", "others", "warnings")
    unknown: dict[str, Any] = {**dict.fromkeys(field.name for field in fields(Now)), **dict.fromkeys(names, ())}
    rows = dict(_fact_rows(Now(**{**unknown, "pace": Pace(), **stated})))
    assert "Memory of all processes" in rows
    assert rows["Clocks"] == "cores 2 GHz"
    assert rows["Limits"] == "waits for a core 50 % of the time"


def test_the_list_reads_only_what_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.report.view import listing as module

    read: list[str] = []
    whole = module._read_row

    def facts(path: Path, root: Path) -> dict[str, Any] | None:
        read.append(path.name)
        return whole(path, root)

    monkeypatch.setattr(module, "_read_row", facts)
    listing = Listing(folder)
    assert len(listing.list_runs()) == len(listing.list_runs()) == 2
    assert len(read) == 2
    (listing.list_runs()[0].path / "summary.json").write_text("{}", encoding="utf-8")
    listing.list_runs()
    assert len(read) == 3


def test_the_next_process_reads_only_what_has_changed_since_the_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(listing_module, "_WORTH_KEEPING", 1)
    read: list[str] = []
    whole = listing_module._read_row

    def noted(path: Path, root: Path) -> Any:
        read.append(path.name)
        return whole(path, root)

    monkeypatch.setattr(listing_module, "_read_row", noted)
    first = Listing(folder).list_runs()
    assert len(first) == len(read) == 2
    assert Listing(folder).list_runs() == first
    assert len(read) == 2
    (first[0].path / "summary.json").write_text("{}", encoding="utf-8")
    shutil.rmtree(first[1].path)
    later = Listing(folder)
    assert later.find(first[1].key) is None
    assert read[2:] == [first[0].path.name]
    (kept,) = (tmp_path / "cache").rglob("*.json")
    assert kept.stat().st_mode & 0o077 == 0
    kept.write_text("[1", encoding="utf-8")
    assert [row.key for row in Listing(folder).list_runs()] == [first[0].key]


def test_very_many_runs_are_listed_at_once_and_read_bit_by_bit_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for most in ("AT_ONCE", "MORE"):
        monkeypatch.setattr(f"stepscope.report.view.site.{most}", 10)
    opened: list[Path] = []

    def read(path: Path) -> Any:
        opened.append(path)
        return read_json(path)

    monkeypatch.setattr(listing_module, "read_json", read)
    names = [f"20260101T0000{second:02}Z-lenet-00000{second % 10}" for second in range(35)]
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
        header = {"schema": 1, "id": name, "status": "ok", "workload": {"name": "lenet"}}
        replace_json(tmp_path / "runs" / name / "run.json", header | {"clock": {"unix_ns": started_ns(name)}})
    site = Site(tmp_path / "runs", Access())
    rows = shown_rows(site)
    assert [row["key"] for row in rows] == names[::-1]
    assert {row["workload"] for row in rows} == {"lenet"}
    assert [row["status"] for row in rows] == ["ok"] * 10 + ["not read yet"] * 25
    assert [path.parent.name for path in opened] == names[::-1][:10]
    assert site.listing.find(names[0]).facts["status"] == "ok", "what is asked for is read"  # type: ignore[union-attr]
    assert len(opened) == 11
    at_a_time = [len(opened)]
    while any(row["status"] == "not read yet" for row in shown_rows(site)):
        at_a_time.append(len(opened) - sum(at_a_time))
    assert max(at_a_time) <= 11
    assert len(opened) == len(names), "each file once"
    assert shown_rows(site) == sorted(shown_rows(site), key=lambda row: row["started_s"], reverse=True)


def started_ns(name: str) -> int:
    stamp = datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    return int(stamp.timestamp() * 1e9)


def shown_rows(site: Site) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(site.answer("/runs.json", {"Host": "localhost"}).body)["rows"]
    return rows


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
)
def test_what_is_loopback(host: str, here: bool) -> None:
    assert is_loopback(host) is here
    assert is_local_host("[::1]")


def test_a_folder_whose_name_has_no_address_does_not_hide_the_other_runs(tmp_path: Path) -> None:
    fabricate_run(tmp_path, steps=8)
    latin = Path(os.fsdecode(os.fsencode(tmp_path) + b"/mod\xe8le"))
    try:
        latin.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    fabricate_run(tmp_path, steps=8, seed=1).rename(latin / "run")
    site = Site(tmp_path, Access())
    assert len(keys(site)) == 1
    assert get(site, "/").status == 200


def test_a_fault_in_the_steps_of_the_list_leaves_its_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("steps")

    monkeypatch.delenv("STEPSCOPE_FAULTS", raising=False)
    monkeypatch.setattr(listing_module, "quick_stats", broken)
    assert [row["step_time_ns"] for row in shown_rows(Site(folder, Access()))] == [None, None]


def test_the_cookies_of_two_views_on_one_host_let_a_visitor_into_both(folder: Path) -> None:
    sites = [Site(folder, Access(token)) for token in ("first", "second")]
    cookies = dict(
        site.answer(f"/?token={site.token}", HERE).headers["Set-Cookie"].split(";")[0].split("=") for site in sites
    )
    sent = "; ".join(f"{name}={value}" for name, value in cookies.items())
    assert [site.answer("/", {**HERE, "Cookie": sent}).status for site in sites] == [200, 200]
    assert Site(folder, Access("third")).answer("/", {**HERE, "Cookie": sent}).status == 403
    beside = f'settings={{"theme":"dark"}}; plain words; {sent}'
    assert [site.answer("/", {**HERE, "Cookie": beside}).status for site in sites] == [200, 200]
