"""Answers of the view to requests, without a socket: who may look, which page, and what a running run says."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from stepscope import __version__
from stepscope.analysis.compare import compare
from stepscope.analysis.run import Run
from stepscope.errors import StepscopeError
from stepscope.quantities import simulated_badge
from stepscope.report import compare_page, html
from stepscope.report.charts.style import DARK, LIGHT
from stepscope.report.live.run_state import Now, RunWatcher
from stepscope.report.live.screen import clock_pieces, slowdown_pieces
from stepscope.report.view.access import HTML, Access, HttpAnswer, cookie_name
from stepscope.report.view.listing import (
    AT_ONCE,
    MORE,
    ListedRun,
    Listing,
    has_link_outside,
    links_to_folders_outside,
    newest_with_steps,
    over_time_data,
)
from stepscope.units import amount, bytes_, capitalize_first, duration, number, percent, plural, si

_JSON = "application/json"
_LONGEST = 8_000  # characters of an address


class Site:
    """The view over one folder: what it has listed and drawn."""

    def __init__(self, root: Path, access: Access) -> None:
        self.listing = Listing(root)
        self._access, self.token = access, access.token
        self._kept, self._watches = PageCache(), RunWatchers()

    def close(self) -> None:
        """Close the files of running runs."""
        self._watches.close()

    def answer(self, target: str, headers: Mapping[str, str]) -> HttpAnswer:
        """The answer to GET target; whatever is wrong with a run becomes a message, never an exception."""
        if len(target) > _LONGEST:
            return HttpAnswer(414, "this address is too long")
        try:
            parts = urlsplit(target)
            query = parse_qs(parts.query, max_num_fields=64)
        except ValueError:
            return HttpAnswer(400, "this address cannot be read")
        token = query.get("token", [None])[0]
        refused = self._access.refusal(headers, token)
        if refused is not None:
            return HttpAnswer(403, refused)
        if token is not None:
            return _redirect_without_token(parts.path, query, token if self._access.is_token(token) else None)
        try:
            return self._answer_of_path(unquote(parts.path), query)
        except StepscopeError as error:
            return HttpAnswer(409, f"{error}\n{error.hint or ''}".strip())

    def _answer_of_path(self, path: str, query: Mapping[str, list[str]]) -> HttpAnswer:
        if path == "/":
            root = self.listing.root
            page, script = list_page(root.name or "runs", self._list_rows(AT_ONCE), links_to_folders_outside(root))
            return HttpAnswer(200, page, HTML, _page_policy(script))
        if path == "/runs.json":
            return HttpAnswer(200, json.dumps({"rows": self._list_rows(MORE)}, allow_nan=False), _JSON)
        if path == "/over-time":
            return self._over_time_page(query.get("run", []))
        if path == "/compare":
            return self._comparison_page(query.get("run", []))
        kind, _, key = path.lstrip("/").partition("/")
        listed = self.listing.find(key) if kind in ("run", "live", "now") else None
        if listed is None:
            return HttpAnswer(404, "there is no such run in this folder")
        if has_link_outside(listed.path, self.listing.root):
            return HttpAnswer(403, "a link in this run leads out of the folder: it is not shown")
        return {"run": self._run_page, "live": self._live_page, "now": self._live_state}[kind](listed)

    def _list_rows(self, most: int) -> list[dict[str, object]]:
        return [{"key": row.key, **row.facts} for row in self.listing.list_runs(most)]

    def _run_page(self, listed: ListedRun) -> HttpAnswer:
        page = self._kept.get((listed.key,), page_files_state(listed.path), lambda: html.render(Run(listed.path)))
        return HttpAnswer(200, page, HTML)

    def _live_page(self, listed: ListedRun) -> HttpAnswer:
        now = self._watches.state_for_json(listed.path)
        if now["ended"]:  # its rows are closed, so there is nothing to follow
            return HttpAnswer(303, "", headers={"Location": "/run/" + quote(listed.key, safe="/")})
        page, script = live_page(str(listed.facts["workload"]), listed.key, now)
        return HttpAnswer(200, page, HTML, _page_policy(script))

    def _live_state(self, listed: ListedRun) -> HttpAnswer:
        return HttpAnswer(200, json.dumps(self._watches.state_for_json(listed.path), allow_nan=False), _JSON)

    def _find_chosen_runs(self, keys: list[str]) -> list[ListedRun] | HttpAnswer:
        """Return the runs under these keys, or why they cannot be shown."""
        matches = [self.listing.find(key) for key in dict.fromkeys(keys)]
        chosen = [listed for listed in matches if listed is not None]
        if len(chosen) < len(matches):
            return HttpAnswer(404, "one of these runs is not in this folder")
        if any(has_link_outside(listed.path, self.listing.root) for listed in chosen):
            return HttpAnswer(403, "a link in one of these runs leads out of the folder: it is not shown")
        return chosen

    def _over_time_page(self, keys: list[str]) -> HttpAnswer:
        """The runs laid over each other by time; the newest of the folder where none is named."""
        chosen = (
            self._find_chosen_runs(keys)
            if keys
            else newest_with_steps(self.listing.list_runs(AT_ONCE), self.listing.root)
        )
        if isinstance(chosen, HttpAnswer):
            return chosen
        state = tuple(page_files_state(listed.path) for listed in chosen)
        cache_key = ("over-time", *(listed.key for listed in chosen))
        data = self._kept.get(cache_key, state, lambda: json.dumps(over_time_data(chosen), allow_nan=False))
        page, script = _render_page("over_time", title="Over time", about=self.listing.root.name, data=json.loads(data))
        return HttpAnswer(200, page, HTML, _page_policy(script))

    def _comparison_page(self, keys: list[str]) -> HttpAnswer:
        chosen = self._find_chosen_runs(keys)
        if isinstance(chosen, HttpAnswer):
            return chosen
        state = tuple(page_files_state(run.path) for run in chosen)
        cache_key = ("compare", *(run.key for run in chosen))
        paths = [run.path for run in chosen]
        return HttpAnswer(200, self._kept.get(cache_key, state, lambda: compare_page.render(compare(paths))), HTML)


def _page_policy(script: str) -> dict[str, str]:
    """The policy of the list and of running runs: our script, and answers of this server alone."""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src '{script}'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy}


def _redirect_without_token(path: str, query: Mapping[str, list[str]], token: str | None) -> HttpAnswer:
    """Off to the same address without the token, which is in a cookie from now on: not in history or on a screen.

    token: None where what was given is not ours: a visitor's text never gets into a header.
    """
    remaining = urlencode({name: values for name, values in query.items() if name != "token"}, doseq=True)
    place = "/" + quote(unquote(path).lstrip("/\\"), safe="/")  # "//host" would lead to another site
    cookie = {} if token is None else {"Set-Cookie": f"{cookie_name(token)}={token}; HttpOnly; SameSite=Strict; Path=/"}
    return HttpAnswer(303, "", headers={"Location": f"{place}?{remaining}" if remaining else place, **cookie})


_MOST_PAGES, _MOST_FOLLOWED = 24, 16  # pages that are kept, running runs that are followed


class PageCache:
    """Pages that were drawn, until the files that they show have changed; one is drawn at a time."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, ...], tuple[object, str]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, ...], state: object, draw: Callable[[], str]) -> str:
        """The page under a key: as it was drawn for this state of its files, else drawn now."""
        entry = self._pages.get(key)
        if entry is not None and entry[0] == state:
            return entry[1]  # without waiting for a page that is being drawn
        with self._lock:
            entry = self._pages.get(key)
            page = entry[1] if entry is not None and entry[0] == state else draw()
            self._pages[key] = (state, page)
            self._pages.move_to_end(key)
            while len(self._pages) > _MOST_PAGES:
                self._pages.popitem(last=False)
            return page


def page_files_state(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every file of a run that its page is made of."""
    states = []
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a run that goes on replaces its files
            if path.suffix != ".html" and path.is_file():
                about = path.stat()
                states.append((path.relative_to(folder).as_posix(), about.st_mtime_ns, about.st_size))
    return tuple(states)


def list_page(name: str, rows: list[dict[str, Any]], links: int = 0) -> tuple[str, str]:
    """The list of runs as HTML text, and the hash of its script."""
    return _render_page("list", title=name, about=plural(len(rows), "run"), data={"rows": rows}, links=links)


def live_page(title: str, key: str, now: dict[str, Any]) -> tuple[str, str]:
    """A running run as HTML text, and the hash of its script."""
    return _render_page("live", title=title, about=key, data={"key": key, **now})


def _render_page(kind: str, **content: Any) -> tuple[str, str]:
    here, page = files("stepscope.report.view"), files("stepscope.report.page")
    script = (here / f"{kind}.js").read_text(encoding="utf-8")
    text = (
        html.page_environment("stepscope.report.view")
        .get_template(f"{kind}.html.j2")
        .render(
            **content,
            css=(page / "page.css").read_text(encoding="utf-8") + (here / "view.css").read_text(encoding="utf-8"),
            light=html.css_variables(LIGHT),
            dark=html.css_variables(DARK),
            script=script,
            version=__version__,
        )
    )
    return text, html.script_hash(script)


class RunWatchers:
    """The runs that are being looked at; each is followed, not read anew."""

    def __init__(self) -> None:
        self._of: dict[Path, RunWatcher] = {}
        self._lock = threading.Lock()

    def state_for_json(self, run: Path) -> dict[str, Any]:
        """Status, facts and warnings of a run at this moment, ready for JSON."""
        with self._lock:
            if run not in self._of:
                while len(self._of) >= _MOST_FOLLOWED:
                    self._of.pop(next(iter(self._of))).close()
                self._of[run] = RunWatcher(run)
            now = self._of[run].read_state()
            if now.ended:
                self._of.pop(run).close()
        return {"status": now.status, "ended": now.ended, "rows": _fact_rows(now), "warnings": list(now.warnings)}

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for watch in self._of.values():
                watch.close()
            self._of.clear()


def _fact_rows(now: Now) -> list[tuple[str, str]]:
    pace, planned = now.pace, f" of {now.planned:,}" if now.planned is not None else ""
    rows = [
        ("Status", f"{now.status}: {now.reason}" if now.reason else now.status),
        ("Steps", f"{pace.done:,}{planned}"),
        ("Step time, of the last steps", duration(pace.step_ns)),
        ("Throughput", "-" if pace.samples_per_s is None else f"{number(pace.samples_per_s)} samples/s"),
        ("Loss", number(pace.loss, 4)),
        ("Time left", "-" if now.left_s is None else duration(now.left_s * 1e9)),
        ("Cores", " · ".join(percent(share, 0) for _, share in now.cores) or "-"),
        *((f"Accelerator {name}", percent(share, 0)) for name, share in now.accelerators),
        *([] if now.other_cards is None else [("Accelerators", capitalize_first(now.other_cards))]),
        (f"Memory of {'all processes' if now.processes else 'the process'}", bytes_(now.resident_bytes)),
        ("Memory available", bytes_(now.available_bytes)),
        *((f"Memory of {name}", bytes_(used)) for name, used, _ in now.accelerator_memory),
        ("Power, whole device", si(now.total_w, "W")),
        *((f"Power of {name}", si(watts, "W")) for name, watts in now.rails),
        *((f"Temperature of {name}", f"{amount(value, 'degC')}") for name, value in now.temperatures),
        *(
            (label, " · ".join(texts))
            for label, pieces in (("Clocks", clock_pieces(now)), ("Limits", slowdown_pieces(now)))
            if (texts := [text for text, _ in pieces])
        ),
        *((capitalize_first(name), amount(value, unit)) for name, value, unit in now.others),
    ]
    if now.left_j is not None:
        rows.append(("Energy left", si(now.left_j, "J")))
    if now.simulated is not None:
        rows.insert(0, (simulated_badge(now.simulated), "not of this machine"))
    return rows
