"""The other ends of unix sockets: sock_diag(7) through pyroute2.

A harness in Node or Bun gives its children socketpairs as stdio. Only the
kernel knows which two inodes are a pair. Imported when the first socket stands
in a wait set: pyroute2 takes 0.2 s to load.
"""

import socket
from pathlib import Path
from typing import Final

_ACCEPTS: Final = 0x10000  # __SO_ACCEPTCON: include/uapi/linux/net.h


def unix_inodes(root: Path, pid: int) -> dict[int, bool]:
    """Inodes of the unix sockets in the process's network namespace (proc_pid_net(5)), and
    whether each listens (``__SO_ACCEPTCON`` among its flags).
    """
    try:
        lines = (root / str(pid) / "net" / "unix").read_bytes().splitlines()[1:]
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {int(f[6]): bool(int(f[3], 16) & _ACCEPTS) for f in fields if len(f) > 6}


def unix_peers() -> dict[int, int]:
    """Inode of every connected unix socket of this network namespace, with its peer's.

    Empty where the kernel or the host refuses: then an end is known only by being
    the root's own input.
    """
    from pyroute2 import DiagSocket  # noqa: PLC0415  (slow to load, rarely needed)
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415

    try:
        with DiagSocket() as diag:
            diag.bind()
            found = {}
            for entry in diag.get_sock_stats(family=socket.AF_UNIX):
                peer = entry.get_attr("UNIX_DIAG_PEER")
                if peer:
                    found[int(entry["udiag_ino"])] = int(peer)
            return found
    except (OSError, NetlinkError):
        return {}
