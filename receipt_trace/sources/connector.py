"""Process lifecycle from the kernel: the process-events connector.

Documentation/driver-api/connector.rst and include/uapi/linux/cn_proc.h. Forks,
execs and exits of the whole host arrive in order, so that membership of a tree is
exact. Spoken as bytes rather than through pyroute2's ``ProcEventSocket``: that
takes 0.2 ms of CPU for each event (ten times this) and does not come back from an
overrun of its buffer.
"""

import errno
import os
import socket
import struct
from typing import Final

from receipt_trace.observation import Exec, Exit, Fork, Lifecycle, Resync

_NETLINK_CONNECTOR: Final = 11
_CN_IDX_PROC: Final = 1
_CN_VAL_PROC: Final = 1
_PROC_CN_MCAST_LISTEN: Final = 1
_NLMSG_DONE: Final = 3
_HEADERS: Final = struct.Struct("=IHHIIIIIIHH")  # nlmsghdr, cn_msg
_EVENT: Final = struct.Struct("=IIQ4I")  # what, cpu, timestamp, then four words of the union
_FORK: Final = 0x00000001
_EXEC: Final = 0x00000002
_EXIT: Final = 0x80000000
_BUFFER: Final = 4 << 20  # bytes: about 20,000 events, two seconds of a fork storm
_AT_ONCE: Final = 4096  # events taken in one turn, so that sampling goes on in a storm
_SO_RCVBUFFORCE: Final = 33


class Connector:
    """Listens to the process events of the host.

    Raises PermissionError (the kernel wants CAP_NET_ADMIN) or another OSError (no
    connector, or another network namespace) when it may not.
    """

    name = "connector"

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR
        )
        try:
            self._socket.bind((0, _CN_IDX_PROC))
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            except PermissionError:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            self._subscribe()
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def _subscribe(self) -> None:
        operation = struct.pack("=I", _PROC_CN_MCAST_LISTEN)
        length = _HEADERS.size + len(operation)
        head = _HEADERS.pack(
            length, _NLMSG_DONE, 0, 0, os.getpid(), _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, len(operation), 0
        )  # fmt: skip
        self._socket.send(head + operation)

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def read(self) -> list[Lifecycle]:
        """The events there are, oldest first, a bounded number; a loss is told as ``Resync``."""
        events: list[Lifecycle] = []
        for _ in range(_AT_ONCE):
            try:
                datagram = self._socket.recv(4096)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                events.append(Resync())
                continue
            event = parse(datagram)
            if event is not None:
                events.append(event)
        return events

    def execs(self, pid: int) -> int:  # noqa: ARG002
        """How often a process has become another program: nobody has counted (0)."""
        return 0

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def parse(datagram: bytes) -> Lifecycle | None:
    """One datagram as an event; ``None`` for threads, acknowledgements and kinds that do not matter."""
    if len(datagram) < _HEADERS.size + _EVENT.size:
        return None
    header = _HEADERS.unpack_from(datagram)
    if header[5:7] != (_CN_IDX_PROC, _CN_VAL_PROC):
        return None
    what, _cpu, _time, first, second, third, fourth = _EVENT.unpack_from(datagram, _HEADERS.size)
    if what == _FORK and third == fourth:  # child pid is its tgid: a process, not a thread
        return Fork(parent=second, child=fourth)
    if what == _EXEC:
        return Exec(second)
    if what == _EXIT and first == second:  # the leader; it may leave before its threads do
        return Exit(second, third)
    return None
