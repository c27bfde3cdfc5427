"""What a service and its manager tell each other: sd_notify(3), sd_listen_fds(3).

Both are a few environment variables and one datagram; without a manager nothing happens.
"""

import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

from receipt_trace.constants import NS

_FIRST_FD: Final = 3  # SD_LISTEN_FDS_START


class Manager:
    """The service manager that started us, if one did. Takes what is ours out of ``environ``:
    none of it is for whom we start.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        period, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = pid in {"", str(os.getpid())}
        self.watchdog_ns = int(period) * 1000 if period.isdecimal() and ours else None
        """Within this time it must be told that we are alive; ``None``: it does not ask."""
        count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
        environ.pop("LISTEN_FDNAMES", None)
        given = int(count) if count.isdecimal() and pid == str(os.getpid()) else 0
        self.sockets = [socket.socket(fileno=fd) for fd in range(_FIRST_FD, _FIRST_FD + given)]
        """The listening sockets it made for us."""
        for handed in self.sockets:
            handed.set_inheritable(False)
        self._beaten = 0

    def ready(self, status: str) -> None:
        """We do our work from now on (also: again, after a reload)."""
        self._tell(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """A line for people (``systemctl status``)."""
        self._tell(f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is read again; :meth:`ready` ends it."""
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """We are about to end."""
        self._tell("STOPPING=1")

    def beat(self, now: int) -> None:
        """We are alive: told three times as often as the watchdog wants it."""
        if self.watchdog_ns is not None and now - self._beaten >= self.watchdog_ns // 3:
            self._beaten = now
            self._tell("WATCHDOG=1")

    @property
    def tick_ns(self) -> int:
        """How often :meth:`beat` wants to be called, at least."""
        return 5 * NS if self.watchdog_ns is None else min(5 * NS, self.watchdog_ns // 3)

    def _tell(self, text: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # an abstract name, unix(7)
            address = "\0" + address[1:]
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.setblocking(False)
            to.sendto(text.encode(), address)
