"""Giving up what a watcher of root does not need: capset(2), capabilities(7)."""

import ctypes
import os
import struct
from typing import Final

_VERSION: Final = 0x20080522  # _LINUX_CAPABILITY_VERSION_3, include/uapi/linux/capability.h
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

KEPT: Final = {
    "CAP_DAC_READ_SEARCH": 2,  # modes of terminals, and files that output goes to
    "CAP_NET_ADMIN": 12,  # process events from the kernel
    "CAP_SYS_PTRACE": 19,  # processes of others below /proc
    "CAP_PERFMON": 38,  # what our programs in the kernel tell
    "CAP_BPF": 39,
}
"""What a watcher needs while it runs, with the number of each; the unit gives the same."""


def drop() -> list[str]:
    """Keep of the capabilities of this thread no more than ``KEPT``, and gain none ever again;
    returns those that are left. To be called before other threads are started: each has its own.

    Raises OSError when the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", _VERSION, 0)
    data = ctypes.create_string_buffer(24)  # two times: effective, permitted, inheritable
    _check(libc.capget(header, data))
    low, high = struct.unpack_from("II", data.raw)[1], struct.unpack_from("II", data.raw, 12)[1]
    wanted = (low | high << 32) & sum(1 << number for number in KEPT.values())
    if wanted == low | high << 32:
        return [name for name, number in KEPT.items() if wanted >> number & 1]
    words = (wanted, wanted, 0, wanted >> 32, wanted >> 32, 0)
    _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    _check(libc.capset(header, struct.pack("6I", *(word & 0xFFFFFFFF for word in words))))
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    return [name for name, number in KEPT.items() if wanted >> number & 1]


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
