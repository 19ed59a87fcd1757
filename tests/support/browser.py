"""Chromium without a window, driven over a pipe by its own protocol: nothing has to be installed beside it."""

import base64
import functools
import http.server
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
PATIENCE = 60.0
#: Chromium reads commands from descriptor 3 and writes answers to 4; the pipe's own numbers may be any, these included.
_START = """
import fcntl, os, sys
read, write = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def chromium() -> str | None:
    """Path of a Chromium, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class BrowserError(Exception):
    """A command that Chromium refused, or a state of a page that did not come about."""


class Page:
    """One page of one Chromium."""

    def __init__(self, read: io.BufferedReader, write: io.BufferedWriter) -> None:
        self._reading, self._writing = read, write
        self._numbers, self._session, self._context, self._rest = itertools.count(1), "", "", b""
        self._renew()

    def _renew(self) -> None:
        # A context of its own, because what a page still writes to a storage while it goes survives its clearing.
        before, self._session = self._context, ""
        self._context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        if before:
            self.call("Target.disposeBrowserContext", browserContextId=before)
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What a command of the protocol gives."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writing.write(json.dumps(message).encode() + b"\0")
        self._writing.flush()
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._reading.read1(1 << 16)
            if not more:
                raise BrowserError("Chromium has gone")
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            # While a page is exchanged there is no context to evaluate in.
            try:
                value = self.evaluate(expression)
            except BrowserError:
                value = None
            if value:
                return value
            time.sleep(0.05)
        raise BrowserError(f"not within {PATIENCE:.0f} s: {expression}")

    def show(self, width: int, height: int, scheme: str) -> None:
        """A new page: size of the window, the reader's preference for light or dark, nothing remembered by any site."""
        self._renew()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Go to an address and wait until all of it is there."""
        # What is shown until the next page comes is told by a mark.
        self.evaluate("window.before = true")
        self.call("Page.navigate", url=url)
        self.wait(f"!window.before && location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        # The frame that is drawn now may be one of before the last change.
        self.evaluate("new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def page() -> Iterator[Page]:
    """A page of a new Chromium that has seen nothing before.

    Raises:
        BrowserError: There is no Chromium, or it does not start.
    """
    program = chromium()
    if program is None:
        raise BrowserError("no Chromium is installed")
    from_us, to_them = os.pipe()
    from_them, to_us = os.pipe()
    # Processes of Chromium that outlive the first one may still write here while it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            sys.executable, "-c", _START, str(from_us), str(to_us), program,
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={Path(profile) / 'profile'}",
        ]  # fmt: skip
        running = subprocess.Popen(
            command, pass_fds=(from_us, to_us), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(from_us)
        os.close(to_us)
        try:
            with os.fdopen(from_them, "rb") as read, os.fdopen(to_them, "wb") as write:
                yield Page(read, write)
        finally:
            running.terminate()
            running.wait()
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
        """Nobody wants to read every request."""


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Address at which a folder is served, to this machine alone."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=directory)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
