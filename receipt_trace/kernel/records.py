"""The records of ``bpf/records.h``, as Python reads them; a test compares the two byte by byte."""

import struct
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple


class Kind(IntEnum):
    """``enum record_kind``."""

    THREAD = 1
    PROCESS = 2
    FILE = 3
    WAITER = 4
    MEMBER = 5
    TEXT = 6
    FORK = 7
    EXEC = 8
    EXIT = 9
    CALL = 10
    EOF = 11
    NOW = 12
    PROGRAM = 13


class ThreadFlag(IntFlag):
    """``THREAD_*``."""

    NARROW = 1
    WORKER = 2
    RUNS = 4


MEMBERS_GO_ON: Final = -2
TEXT_BYTES: Final = 4096


class NowRecord(NamedTuple):
    """``struct now_record``: when a snapshot was taken, on both clocks."""

    kind: int
    size: int
    unused: int
    monotonic: int
    arrived: int


class ThreadRecord(NamedTuple):
    """``struct thread_record``."""

    kind: int
    size: int
    root: int
    tgid: int
    tid: int
    task: int
    start: int
    runs: int
    cpu: int
    ended_cpu: int
    arrived: int
    consumed: int
    written: int
    arg0: int
    arg1: int
    arg2: int
    arg3: int
    arg4: int
    arg5: int
    number: int
    state: int
    flags: int
    status: int
    fresh: int
    timeout_ms: int

    @property
    def args(self) -> tuple[int, ...]:
        """The six arguments of the call."""
        return self[13:19]


class ProcessRecord(NamedTuple):
    """``struct process_record``."""

    kind: int
    size: int
    tgid: int
    parent: int
    group: int
    session: int
    foreground: int
    terminal: int
    uid: int
    start: int
    ignored: int
    caught: int
    comm: bytes


class FileRecord(NamedTuple):
    """``struct file_record``."""

    kind: int
    size: int
    tgid: int
    fd: int
    mode: int
    type: int
    device: int
    filesystem: int
    family: int
    inode: int
    file: int
    operations: int
    object: int
    peer: int
    output: int
    input: int
    terminal: int
    writers: int
    state: int
    unused: int


class WaiterRecord(NamedTuple):
    """``struct waiter_record``."""

    kind: int
    size: int
    tgid: int
    object: int
    private: int
    behind: int
    waiter: int
    poller: int


class MemberRecord(NamedTuple):
    """``struct member_record``."""

    kind: int
    size: int
    tid: int
    fd: int
    events: int
    file: int


class TextRecord(NamedTuple):
    """``struct text_record``."""

    kind: int
    size: int
    tgid: int
    fd: int
    modes: int
    object: int
    head: int
    rows: int
    columns: int
    has: int
    text: bytes


class EventRecord(NamedTuple):
    """``struct event_record``."""

    kind: int
    size: int
    tgid: int
    parent: int
    status: int
    start: int


class ProgramRecord(NamedTuple):
    """``struct program_record``."""

    kind: int
    size: int
    tgid: int
    parent: int
    session: int
    uid: int
    type: int
    device: int
    argument_bytes: int
    environment_bytes: int
    times: int
    start: int
    comm: bytes
    arguments: bytes
    environment: bytes


class EofRecord(NamedTuple):
    """``struct eof_record``; 1 and 2 are the output and the error output."""

    kind: int
    size: int
    tgid: int
    fd: int
    type: int
    device: int
    took: int
    inode: int
    start: int
    time: int
    inode1: int
    filesystem1: int
    inode2: int
    filesystem2: int
    time1: int
    time2: int
    kept1: int
    kept2: int
    tgid1: int
    tgid2: int
    root: int
    inherited: int
    comm: bytes


Record = (
    NowRecord
    | ThreadRecord
    | ProcessRecord
    | FileRecord
    | WaiterRecord
    | MemberRecord
    | TextRecord
    | EventRecord
    | EofRecord
    | ProgramRecord
)

LAYOUTS: Final[dict[type[Record], struct.Struct]] = {
    NowRecord: struct.Struct("=HHIQQ"),
    ThreadRecord: struct.Struct("=HHIII8Q6QiIIiIi"),
    ProcessRecord: struct.Struct("=HHIIiiiIIQQQ16s"),
    FileRecord: struct.Struct("=HHIiIIIIIQQQQQQQIIII"),
    WaiterRecord: struct.Struct("=HHIQQQII"),
    MemberRecord: struct.Struct("=HHIiIQ"),
    TextRecord: struct.Struct("=HHIiIQQHHI4096s"),
    EventRecord: struct.Struct("=HHIIiQ"),
    EofRecord: struct.Struct("=HHIiIIIQQQQI4xQI4xQQIIIIII16s"),
    ProgramRecord: struct.Struct("=HHIIiIIIIIIQ16s1024s3072s"),
}

SAID_BYTES: Final = 4096
SAID: Final = struct.Struct("=QQII8192s")
"""``struct said``, a value in a map and not a record."""
