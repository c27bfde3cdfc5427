"""A stand-in for an agent: runs one command as agents do, and passes on what it prints.

    python -m receipt_trace.litmus.standin call|server WIRING COMMAND

A tool call is a shell of a session of its own with the mark that agents agree on
(``AI_AGENT``), so a watcher finds it. A server has no mark. What comes on the standard
input is given to the command.
"""

import os
import select
import sys
import time

from receipt_trace.wiring import Wiring, adopt_orphans, spawn

AGENT = "litmus"
_THINKS_S = 0.5  # an agent is there for a while before its first call


def main() -> int:
    """Run the command; returns its exit status."""
    adopt_orphans()
    role, wiring, command = sys.argv[1:]
    mark = {"AI_AGENT": AGENT} if role == "call" else {}
    time.sleep(_THINKS_S)
    child = spawn(["bash", "-c", command], Wiring(wiring), env={**os.environ, **mark})
    ended = os.pidfd_open(child.pid)
    watched = {0, ended, *child.outputs}
    while True:
        ready = select.select(watched, [], [])[0]
        for fd in ready:
            if fd == ended:
                continue
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                continue
            except OSError:  # EIO: nobody has the terminal any more
                data = b""
            if not data:
                watched.discard(fd)
                if fd == 0:
                    child.close_input()
            elif fd:
                os.write(1, data)
            elif child.input is not None:
                os.write(child.input, data)
        if ready == [ended]:  # all it has printed was passed on
            code = child.process.wait()
            return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
