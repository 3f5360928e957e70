"""What the view answers to a request: a function of the address and the headers, without a socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from stepscope.analysis.compare import compare
from stepscope.analysis.run import Run
from stepscope.errors import StepscopeError
from stepscope.report import compare_page, html
from stepscope.report.view.access import COOKIE, Access
from stepscope.report.view.drawing import Kept, list_page, live_page, state_of
from stepscope.report.view.listing import Listed, Listing, leads_out
from stepscope.report.view.live_facts import Watches

_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
_LONGEST = 8_000  # characters of an address
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Answer:
    """A response: status, body, its type, and headers beside those that every answer has."""

    status: int
    body: str
    kind: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    def all_headers(self) -> dict[str, str]:
        """The headers as they are sent; by themselves answers run nothing and load nothing."""
        policy = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
        if self.kind == _HTML:
            policy = {"Content-Security-Policy": "frame-ancestors 'none'"}  # beside the one that the page states itself
        return {"Content-Type": self.kind, **_SAFE, **policy, **self.headers}


class Site:
    """The view over one folder: what it has listed and drawn."""

    def __init__(self, root: Path, access: Access) -> None:
        self.listing = Listing(root)
        self._access, self.token = access, access.token
        self._kept, self._watches = Kept(), Watches()

    def close(self) -> None:
        """Let go of the files of running runs."""
        self._watches.close()

    def answer(self, target: str, headers: Mapping[str, str]) -> Answer:
        """The answer to GET target; whatever is wrong with a run becomes a message, never an exception."""
        if len(target) > _LONGEST:
            return Answer(414, "this address is too long")
        parts = urlsplit(target)
        query = parse_qs(parts.query, max_num_fields=64)
        given = query.get("token", [None])[0]
        refused = self._access.refusal(headers, given)
        if refused is not None:
            return Answer(403, refused)
        if given is not None:
            return _without_token(parts.path, query, given if self._access.knows(given) else None)
        try:
            return self._routed(unquote(parts.path), query)
        except StepscopeError as error:
            return Answer(409, f"{error}\n{error.hint or ''}".strip())

    def _routed(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        if path == "/":
            page, script = list_page(self.listing.root.name or "runs", self._rows())
            return Answer(200, page, _HTML, _own_page(script))
        if path == "/runs.json":
            return Answer(200, json.dumps({"rows": self._rows()}, allow_nan=False), _JSON)
        if path == "/compare":
            return self._compared(query.get("run", []))
        kind, _, key = path.lstrip("/").partition("/")
        listed = self.listing.find(key) if kind in ("run", "live", "now") else None
        if listed is None:
            return Answer(404, "there is no such run in this folder")
        if leads_out(listed.path, self.listing.root):
            return Answer(403, "a link in this run leads out of the folder: it is not shown")
        return {"run": self._run, "live": self._live, "now": self._now}[kind](listed)

    def _rows(self) -> list[dict[str, object]]:
        return [{"key": row.key, **row.facts} for row in self.listing.look()]

    def _run(self, listed: Listed) -> Answer:
        page = self._kept.get((listed.key,), state_of(listed.path), lambda: html.render(Run(listed.path)))
        return Answer(200, page, _HTML)

    def _live(self, listed: Listed) -> Answer:
        now = self._watches.look(listed.path)
        if now["ended"]:  # its rows are closed, so there is nothing to follow
            return Answer(303, "", headers={"Location": "/run/" + quote(listed.key, safe="/")})
        page, script = live_page(str(listed.facts["workload"]), listed.key, now)
        return Answer(200, page, _HTML, _own_page(script))

    def _now(self, listed: Listed) -> Answer:
        return Answer(200, json.dumps(self._watches.look(listed.path), allow_nan=False), _JSON)

    def _compared(self, keys: list[str]) -> Answer:
        found = [self.listing.find(key) for key in dict.fromkeys(keys)]
        chosen = [one for one in found if one is not None]
        if len(chosen) < len(found):
            return Answer(404, "one of these runs is not in this folder")
        if any(leads_out(one.path, self.listing.root) for one in chosen):
            return Answer(403, "a link in one of these runs leads out of the folder: it is not shown")
        state = tuple(state_of(one.path) for one in chosen)
        cache_key = ("compare", *(one.key for one in chosen))
        paths = [one.path for one in chosen]
        return Answer(200, self._kept.get(cache_key, state, lambda: compare_page.render(compare(paths))), _HTML)


def _own_page(script: str) -> dict[str, str]:
    """The policy of the list and of running runs: our script, and answers of this server alone."""
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src '{script}'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy}


def _without_token(path: str, query: Mapping[str, list[str]], token: str | None) -> Answer:
    """Off to the same address without the token, which is in a cookie from now on: not in history or on a screen.

    token: None where what was given is not ours: a visitor's text never gets into a header.
    """
    rest = urlencode({name: values for name, values in query.items() if name != "token"}, doseq=True)
    place = "/" + quote(unquote(path).lstrip("/\\"), safe="/")  # "//host" would lead to another site
    cookie = {} if token is None else {"Set-Cookie": f"{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"}
    return Answer(303, "", headers={"Location": f"{place}?{rest}" if rest else place, **cookie})
