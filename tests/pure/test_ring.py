"""The consumer's side of a BPF ring, over memory that a test has written itself."""

import mmap
import os
import struct

import pytest

from receipt_trace.kernel import syscall
from receipt_trace.kernel.ring import Ring

SIZE = 4096
PAGE = 4096
BUSY, DISCARDED = 1 << 31, 1 << 30


class Memory:
    """What the kernel would map: its data twice in a row, so that nobody sees it wrap."""

    def __init__(self, at=0):
        self.consumer = mmap.mmap(-1, PAGE)
        self.producer = mmap.mmap(-1, PAGE + 2 * SIZE)
        self.end = at
        struct.pack_into("=Q", self.consumer, 0, at)
        struct.pack_into("=Q", self.producer, 0, at)

    @property
    def consumed(self):
        """How far the consumer says it is."""
        return struct.unpack_from("=Q", self.consumer, 0)[0]

    def put(self, data, flags=0):
        """One record; returns where it lies."""
        at = self.end
        self._write(at, struct.pack("=II", len(data) | flags, 0) + data)
        self.end += (len(data) + 8 + 7) & ~7
        struct.pack_into("=Q", self.producer, 0, self.end)
        return at

    def commit(self, at, data):
        """A record that was reserved is whole now."""
        self._write(at, struct.pack("=II", len(data), 0) + data)

    def _write(self, at, raw):
        for place, byte in enumerate(raw, at):
            for copy in (0, SIZE):
                self.producer[PAGE + place % SIZE + copy] = byte


@pytest.fixture
def ring_of(monkeypatch):
    """Makes the ring over a memory."""
    made = []

    def ring_of(memory):
        monkeypatch.setattr(
            syscall, "map_ring", lambda fd, size: (memory.consumer, memory.producer)
        )
        made.append(Ring(-1, SIZE))
        return made[-1]

    yield ring_of
    for ring in made:
        ring.close()


def test_records_are_read_in_order_and_given_back(ring_of):
    """Each once, whatever its length, and the producer may use their place again."""
    memory = Memory()
    ring = ring_of(memory)
    told = [b"", b"a", b"12345678", b"123456789"]
    for data in told:
        memory.put(data)
    assert ring.read(100) == told
    assert memory.consumed == memory.end
    assert ring.read(100) == []


def test_a_record_that_wraps_is_read_whole(ring_of):
    """From wherever the one before has left off, and however often round."""
    memory = Memory(at=5 * SIZE - 16)
    ring = ring_of(memory)
    for turn in range(40):
        data = bytes([turn]) * 300
        memory.put(data)
        assert ring.read(100) == [data]
    assert memory.consumed == memory.end > 7 * SIZE


def test_nothing_behind_a_record_that_is_being_written_is_read(ring_of):
    """Or events would come out of order; the reader stands still until it is there."""
    memory = Memory()
    ring = ring_of(memory)
    memory.put(b"first")
    at = memory.put(b".....", BUSY)
    memory.put(b"third")
    assert ring.read(100) == [b"first"]
    assert memory.consumed == at
    memory.commit(at, b"later")
    assert ring.read(100) == [b"later", b"third"]


def test_a_record_that_was_discarded_is_skipped(ring_of):
    """And its place is given back like any other."""
    memory = Memory()
    ring = ring_of(memory)
    memory.put(b"nothing", DISCARDED)
    memory.put(b"something")
    memory.put(b"nothing", DISCARDED)
    assert ring.read(100) == [b"something"]
    assert memory.consumed == memory.end


def test_no_more_are_read_than_was_asked_for(ring_of):
    """The rest comes the next time."""
    memory = Memory()
    ring = ring_of(memory)
    for n in range(5):
        memory.put(bytes([n]))
    assert [ring.read(2) for _ in range(4)] == [[b"\0", b"\1"], [b"\2", b"\3"], [b"\4"], []]


def test_waiting_ends_when_something_comes(ring_of):
    """Or with the time."""
    ring = ring_of(Memory())
    reader, writer = os.pipe()
    ring.fd = reader
    try:
        assert ring.wait(0) is False
        os.write(writer, b".")
        assert ring.wait(10) is True
    finally:
        os.close(reader)
        os.close(writer)
