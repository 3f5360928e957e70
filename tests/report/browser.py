"""The system's Chromium through Playwright: what a page says to its console, asks of the network, answers to hands."""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from tests.patience import HANG_S, until

NAMES = ("chromium", "chromium-browser", "google-chrome")
COMES = "BROWSER_COMES"  # names a file that is there while a browser is being installed: then there must be one
_FLAGS = ("--disable-gpu", "--hide-scrollbars", "--disable-extensions", "--disable-component-update", "--disable-sync")
_HANG_MS = HANG_S * 1000  # where a busy machine takes its time, the default of half a minute is none
_BAD = ("error", "warning", "assert")  # of what a page says to its console


def found() -> str | None:
    """Return the path of the browser, once none is being installed any more; None where there is none."""
    if coming := os.environ.get(COMES):
        until(lambda: not Path(coming).exists(), "the end of the browser's installation")
    if importlib.util.find_spec("playwright") is None:
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page; close it, or use it in a `with`. While it is open no asyncio loop can run here.

    Where there is no Chromium the test is skipped; where one was to be installed it fails.
    """

    def __init__(self, profile: Path) -> None:
        path = found()
        if path is None:
            pytest.fail("no Chromium, which .ci/browser installs") if COMES in os.environ else pytest.skip(
                "no Chromium"
            )
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            self._context = self._playwright.chromium.launch_persistent_context(
                profile, executable_path=path, args=_FLAGS, chromium_sandbox=False, no_viewport=True, timeout=_HANG_MS
            )
        except BaseException:
            self._playwright.stop()
            raise
        self._context.set_default_timeout(_HANG_MS)
        self.page = self._context.pages[0]
        self.said: list[str] = []  # errors and warnings of the console, exceptions, breaches of the policy
        self.asked: list[str] = []  # addresses that were asked for
        self.page.on("console", lambda message: self.said.append(message.text) if message.type in _BAD else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self._session = self._context.new_cdp_session(self.page)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._context.close()
        self._playwright.stop()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol."""
        answer: dict[str, Any] = self._session.send(method, params)
        return answer

    def open(self, path: Path, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of this size, and wait until it has loaded."""
        self.said.clear()
        self.asked.clear()
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.resize(width, height)
        self.page.goto(path.resolve().as_uri())
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def run(self, script: str) -> Any:
        """The value of an expression on the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, such as "Enter" or "+"."""
        self.page.keyboard.press(key)

    def picture(self, target: Path, top: int = 0, height: int | None = None) -> None:
        """The page as PNG, from a height in px on; the whole of it unless told otherwise."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shown = size["height"] - top if height is None else height
        clip = {"x": 0, "y": top, "width": size["width"], "height": shown, "scale": 1}
        drawn = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(drawn["data"]))
