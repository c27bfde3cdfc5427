"""A real browser without a window, told what to do over a pipe (the DevTools protocol)."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from .support import BOUND, environment, missing


class Browser:
    """Debian's Chromium with one page open. Sandbox off: it runs as root, on loopback only."""

    def __init__(self):
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        if program is None:
            missing("no Chromium is installed", "install chromium-headless-shell")
        self._profile = tempfile.mkdtemp(prefix="browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--no-proxy-server", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", f"--user-data-dir={self._profile}",
            "--window-size=1200,900", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        # It reads from 3 and writes to 4; the shell puts them there, and no code of ours runs
        # between fork and exec.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(self._profile),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self.events = b"", 0, []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """One command; its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        """Go somewhere; done when it is loaded."""
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, script):
        """What an expression gives on the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self):
        """Errors, refused scripts and exceptions so far; a server that is gone is none."""
        wrong = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [
            event["params"]
            for event in self.events
            if event.get("method") in wrong and "ERR_CONNECTION_REFUSED" not in json.dumps(event)
        ]

    def requests(self):
        """Every address that was asked for."""
        return {
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        }

    def screenshot(self, path):
        """A picture of the page (PNG)."""
        picture = base64.b64decode(self.call("Page.captureScreenshot")["data"])
        path.write_bytes(picture)
        return picture

    def close(self):
        """End it."""
        os.close(self._out)
        try:
            self._process.wait(BOUND)  # it ends when nobody tells it anything any more
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(BOUND)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self):
        end = time.monotonic() + BOUND
        while b"\0" not in self._buffer:
            assert time.monotonic() < end, "the browser does not answer"
            if select.select([self._in], [], [], 1)[0]:
                part = os.read(self._in, 1 << 20)
                assert part, "the browser has ended"
                self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
