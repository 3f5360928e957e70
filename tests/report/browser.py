"""A headless Chromium, driven over a pipe: what a page says to its console, asks of the network, answers to hands."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATH = next((found for name in NAMES if (found := shutil.which(name))), None)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--hide-scrollbars", "--disable-extensions", "--disable-component-update", "--disable-sync", "--mute-audio"),
)


class Browser:
    """One browser with one page; close it, or use it in a `with`."""

    def __init__(self, profile: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()  # commands, answers
        assert PATH is not None, "no Chromium here"

        def place() -> None:
            keep = os.dup2(ours[0], 60), os.dup2(theirs[1], 61)  # out of the way of 3 and 4, whatever they are
            os.dup2(keep[0], 3)
            os.dup2(keep[1], 4)

        command = [PATH, *_FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, close_fds=False, preexec_fn=place, stdin=quiet, stdout=quiet, stderr=quiet
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._to, self._from = ours[1], os.fdopen(theirs[0], "rb", buffering=0)
        self._buffer, self._number, self._session = b"", 0, ""
        self.said: list[str] = []  # errors and warnings of the console, exceptions, breaches of the policy
        self.asked: list[str] = []  # addresses that were asked for
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._to)
        self._from.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of this size, and wait until it has loaded."""
        self.said.clear()
        self.asked.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.resize(width, height)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
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
        named = {"Enter": ("Enter", 13, "\r"), " ": ("Space", 32, " ")}
        code, number, text = named.get(key, (key, 0, key if len(key) == 1 else ""))
        about = {"key": key, "code": code, "windowsVirtualKeyCode": number, "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code)

    def picture(self, target: Path, top: int = 0, height: int | None = None) -> None:
        """The page as PNG, from a height in px on; the whole of it unless told otherwise."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shown = size["height"] - top if height is None else height
        clip = {"x": 0, "y": top, "width": size["width"], "height": shown, "scale": 1}
        drawn = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(drawn["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = self._from.read(1 << 20)
            assert read, "the browser has gone"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._heard(message.get("method", ""), message.get("params", {}))
        return message

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.said.append(str(details.get("exception", {}).get("description", details.get("text"))))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.said.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
