"""A real browser without a screen: Chromium, spoken to in its own protocol over a pipe.

The protocol is the Chrome DevTools Protocol: JSON objects that end with a zero byte, which
Chromium reads at file descriptor 3 and writes at 4. A key that is pressed so is a key for it: the
focus goes where it goes for a person, and names are those that it hands to a screen reader.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")

in_a_browser: Final = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

PATIENCE_SECONDS: Final = 240.0

_BEGIN: Final = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3]]
for place, end in enumerate(ends, 3):
    os.dup2(end, place)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""

_KEYS: Final = {"Tab": (9, ""), "Enter": (13, "\r")}
"""Number and text of each key that is pressed."""


class Focused(NamedTuple):
    """Where the focus is, as a screen reader is told."""

    role: str
    name: str


class Page:
    """A page in its tab."""

    def __init__(self, pipe: _Pipe, session: str) -> None:
        self._pipe = pipe
        self._session = session

    def ask(self, method: str, **parameters: Any) -> Any:
        """The answer to a call of the protocol."""
        return self._pipe.ask(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript; of a promise, what it comes to."""
        answer = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, down and up."""
        number, text = _KEYS[key]
        named = {"key": key, "code": key}
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.ask(
                "Input.dispatchKeyEvent", type=kind, windowsVirtualKeyCode=number, **named, **typed
            )

    def focused(self) -> Focused:
        """What has the focus."""
        answer = self.ask("Runtime.evaluate", expression="document.activeElement")
        told = self.ask(
            "Accessibility.getPartialAXTree",
            objectId=answer["result"]["objectId"],
            fetchRelatives=False,
        )
        return _told(told["nodes"][0])

    def picture(self, scheme: str) -> bytes:
        """What is seen in a window as wide as three screens, in light or dark colours."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])
        shape = {"width": 2600, "height": 920, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **shape)
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def told(self) -> Sequence[Focused]:
        """All that a screen reader is told, in its order."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        return [_told(node) for node in nodes if not node["ignored"]]


def _told(node: Any) -> Focused:
    return Focused(
        node.get("role", {}).get("value", ""), str(node.get("name", {}).get("value", "")).strip()
    )


class _Pipe:
    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self._process = process
        self._to = to
        self._back = back
        self._heard = b""
        self._number = 0
        self._events: set[str] = set()
        """All that have happened."""

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.add(answer["method"])

    def wait_for(self, event: str) -> None:
        """Until it has happened once."""
        while event not in self._events:
            self._events.add(self._next().get("method"))

    def _next(self) -> Any:
        while b"\0" not in self._heard:
            readable, _, _ = select.select([self._back], [], [], PATIENCE_SECONDS)
            assert readable, "the browser says nothing"
            some = os.read(self._back, 1 << 16)
            assert some, f"the browser ended: {self._process.wait()}"
            self._heard += some
        one, _, self._heard = self._heard.partition(b"\0")
        return json.loads(one)


@contextmanager
def browsing(url: str, profile: Path) -> Iterator[Page]:
    """A page, once it is there.

    Args:
        profile: a new directory, for what the browser keeps.
    """
    assert CHROMIUM is not None
    theirs_in, to = os.pipe()
    back, theirs_out = os.pipe()
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", _BEGIN, str(theirs_in), str(theirs_out), CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # with all that it starts
    )
    os.close(theirs_in)
    os.close(theirs_out)
    pipe = _Pipe(process, to, back)
    try:
        target = pipe.ask("Target.createTarget", url="about:blank")["targetId"]
        session = pipe.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(pipe, session)
        page.ask("Accessibility.enable")
        page.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        page.ask("Page.enable")
        page.ask("Page.navigate", url=url)
        pipe.wait_for("Page.loadEventFired")
        assert page.evaluate("location.href") == url
        yield page
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(to)
        os.close(back)
