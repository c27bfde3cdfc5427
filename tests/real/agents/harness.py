"""An agent in Python, Rust or Go: starts what its plan says, keeps their streams, reads its own
input as one does that has a user.

usage: harness.py PLAN   (PLAN: see stage.py)
"""

import ctypes
import fcntl
import json
import os
import selectors
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path


def retitle(title):
    """Write another title over the arguments, as setproctitle(3bsd) does."""
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(stat[48 - 3]), int(stat[49 - 3])
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title.encode(), len(title))
    ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)  # PR_SET_NAME


def take_terminal():
    """Make the standard input the controlling terminal of a new session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Children:
    """Everybody that was started, and our ends of their streams."""

    def __init__(self):
        self.kept = []
        self.selector = selectors.DefaultSelector()

    def start(self, item):
        """Start one; returns its number."""
        if item["stdio"][0] == "pty":
            return self._on_terminal(item)
        return self._on_streams(item)

    def _on_terminal(self, item):
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        child = subprocess.Popen(
            item["argv"],
            cwd=item["cwd"],
            env=item["env"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509  (there are no threads)
        )
        os.close(slave)
        self.kept.append(child)
        self.selector.register(master, selectors.EVENT_READ, item.get("feed"))
        return child.pid

    def _on_streams(self, item):
        source, output = item["stdio"]
        stdin = {"null": subprocess.DEVNULL, "inherit": None}.get(source, subprocess.PIPE)
        out = err = subprocess.PIPE
        if output == "file":
            out = err = os.open(f"{item['cwd']}/output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        elif output == "merged":
            err = subprocess.STDOUT
        elif output == "inherit":
            out = err = None
        child = subprocess.Popen(
            item["argv"],
            cwd=item["cwd"],
            env=item["env"],
            stdin=stdin,
            stdout=out,
            stderr=err,
            start_new_session=item["session"],
            process_group=0 if item.get("group") else None,
        )
        if output == "file":
            os.close(out)
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                self.selector.register(stream.fileno(), selectors.EVENT_READ, None)
        if source == "closed":
            child.stdin.close()
        if source == "open" and item.get("feed"):
            os.write(child.stdin.fileno(), item["feed"].encode())
        self.kept.append(child)
        return child.pid

    def serve(self):
        """Read what they say, and our own input; feed a terminal when its shell has spoken."""
        self.selector.register(0, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.selector.select():
                try:
                    said = os.read(key.fd, 65536)
                except OSError:  # EIO: nobody has the terminal any more
                    said = b""
                if not said:
                    self.selector.unregister(key.fd)
                elif key.data:
                    os.write(key.fd, key.data.encode())
                    self.selector.modify(key.fd, selectors.EVENT_READ, None)


def main():
    """Play the agent."""
    plan = json.loads(Path(sys.argv[-1]).read_text())
    if plan["becomes"] and Path(sys.argv[0]).stem == "harness":
        # Under another name from now on; the copy of this file tells that it has happened.
        time.sleep(1)  # so that everybody could see who it was
        again = Path(sys.argv[-1]).with_name("again.py")
        again.write_bytes(Path(__file__).read_bytes())
        os.execv(plan["becomes"], (plan["becomes"], str(again), sys.argv[-1]))
    if plan.get("title"):
        retitle(plan["title"])
    children = Children()
    with open(plan["report"], "a", buffering=1) as report:
        report.write(json.dumps({"id": "self", "pid": os.getpid()}) + "\n")
        for item in plan["items"]:
            pid = children.start(item)
            print(json.dumps({"id": item["id"], "pid": pid}), file=report)
    children.serve()


main()
