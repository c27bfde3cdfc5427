"""The consumer's side of a BPF ring buffer (kernel/bpf/ringbuf.c), read in place.

bcc's own reader calls back for each event, which costs five times as much, and does
not return while the producers outrun it.
"""

import select
import struct
from typing import Final

from receipt_trace.kernel import syscall

_BUSY: Final = 1 << 31  # BPF_RINGBUF_BUSY_BIT: reserved, not yet written
_DISCARDED: Final = 1 << 30  # BPF_RINGBUF_DISCARD_BIT
_HEADER: Final = 8
_PAGE: Final = 4096


class Ring:
    """A ring of ``size`` bytes behind a map's descriptor."""

    def __init__(self, map_fd: int, size: int) -> None:
        self.fd = map_fd
        self._size = size
        self._consumer, self._producer = syscall.map_ring(map_fd, size)
        (self._at,) = struct.unpack_from("=Q", self._consumer, 0)

    def read(self, limit: int) -> list[bytes]:
        """The records there are, oldest first, at most ``limit``."""
        found: list[bytes] = []
        producer, at = self._producer, self._at
        (end,) = struct.unpack_from("=Q", producer, 0)
        while at < end and len(found) < limit:
            start = _PAGE + at % self._size  # what wraps is mapped twice
            (length,) = struct.unpack_from("=I", producer, start)
            if length & _BUSY:
                break
            size = length & ~(_BUSY | _DISCARDED)
            if not length & _DISCARDED:
                found.append(producer[start + _HEADER : start + _HEADER + size])
            at += (size + _HEADER + 7) & ~7
        if at != self._at:
            self._at = at
            struct.pack_into("=Q", self._consumer, 0, at)
        return found

    def wait(self, seconds: float) -> bool:
        """Whether something came within the time."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def close(self) -> None:
        """Unmap it; the descriptor is the caller's."""
        self._consumer.close()
        self._producer.close()
