"""The pages of the view itself, the list and a running run, and the pages that were drawn before."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from stepscope import __version__
from stepscope.report.charts.palette import DARK, LIGHT
from stepscope.units import plural

_MOST_KEPT = 24  # pages


class Kept:
    """Pages that were drawn, until the files that they show have changed; one is drawn at a time."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, ...], tuple[object, str]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, ...], state: object, draw: Callable[[], str]) -> str:
        """The page under a key: as it was drawn for this state of its files, else drawn now."""
        with self._lock:
            found = self._pages.get(key)
            page = found[1] if found is not None and found[0] == state else draw()
            self._pages[key] = (state, page)
            self._pages.move_to_end(key)
            while len(self._pages) > _MOST_KEPT:
                self._pages.popitem(last=False)
            return page


def state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every file of a run that its page is made of."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix != ".html" and path.is_file():
            about = path.stat()
            found.append((path.relative_to(folder).as_posix(), about.st_mtime_ns, about.st_size))
    return tuple(found)


def list_page(name: str, rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The list of runs as HTML text, and the hash of its script."""
    return _page("list", title=name, about=plural(len(rows), "run"), data={"rows": rows})


def live_page(title: str, key: str, now: dict[str, Any]) -> tuple[str, str]:
    """A running run as HTML text, and the hash of its script."""
    return _page("live", title=title, about=key, data={"key": key, **now})


def _page(kind: str, **content: Any) -> tuple[str, str]:
    here, page = files("stepscope.report.view"), files("stepscope.report.page")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (here / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    script = (here / f"{kind}.js").read_text(encoding="utf-8")
    text = environment.get_template(f"{kind}.html.j2").render(
        **content,
        css=(page / "page.css").read_text(encoding="utf-8") + (here / "view.css").read_text(encoding="utf-8"),
        light=" ".join(f"--{name}: {value};" for name, value in LIGHT.items()),
        dark=" ".join(f"--{name}: {value};" for name, value in DARK.items()),
        script=script,
        version=__version__,
    )
    return text, "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
