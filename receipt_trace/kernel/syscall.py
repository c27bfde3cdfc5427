"""bpf(2), and what else the kernel boundary asks of the kernel, without a library between.

The commands and the layout of their arguments are those of include/uapi/linux/bpf.h. Every
function raises OSError as the kernel says it.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from typing import Final

_NUMBER: Final = {"x86_64": 321, "aarch64": 280}
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
_CLOEXEC: Final = 8  # PERF_FLAG_FD_CLOEXEC
_SET_BPF: Final = 0x40042408  # PERF_EVENT_IOC_SET_BPF
_ENABLE: Final = 0x2400  # PERF_EVENT_IOC_ENABLE
_ATTRIBUTES: Final = 144  # bytes of union bpf_attr that are passed; unused ones are zero

MAP_CREATE: Final = 0
MAP_LOOKUP: Final = 1
MAP_UPDATE: Final = 2
MAP_DELETE: Final = 3
PROG_LOAD: Final = 5
MAP_GET_NEXT: Final = 4
RAW_TRACEPOINT_OPEN: Final = 17
LINK_CREATE: Final = 28
ITER_CREATE: Final = 33
ENABLE_STATS: Final = 32
OBJ_GET_INFO: Final = 15

_libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    """Have a command done; returns what the kernel returns."""
    buffer = ctypes.create_string_buffer(attributes, max(_ATTRIBUTES, len(attributes)))
    result = _libc.syscall(
        _NUMBER[os.uname().machine], command, ctypes.byref(buffer), ctypes.c_uint(len(buffer))
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def _pointer(buffer: "ctypes.Array[ctypes.c_char]") -> int:
    return ctypes.addressof(buffer)


def create_map(kind: int, key: int, value: int, entries: int, flags: int, name: str) -> int:
    """Create a map; returns its descriptor."""
    head = struct.pack("=5I", kind, key, value, entries, flags)
    label = name.encode()[:15].ljust(16, b"\0")
    return bpf(MAP_CREATE, head + struct.pack("=II", 0, 0) + label)


def update(map_fd: int, key: bytes, value: bytes) -> None:
    """Put a value under a key."""
    k, v = (
        ctypes.create_string_buffer(key, len(key)),
        ctypes.create_string_buffer(value, len(value)),
    )
    bpf(MAP_UPDATE, struct.pack("=I4xQQQ", map_fd, _pointer(k), _pointer(v), 0))


def delete(map_fd: int, key: bytes) -> None:
    """Remove a key; none is no error."""
    k = ctypes.create_string_buffer(key, len(key))
    try:
        bpf(MAP_DELETE, struct.pack("=I4xQ", map_fd, _pointer(k)))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def lookup(map_fd: int, key: bytes, size: int) -> bytes | None:
    """The value under a key, ``size`` bytes of it; ``None``: there is none."""
    k, v = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(size)
    try:
        bpf(MAP_LOOKUP, struct.pack("=I4xQQQ", map_fd, _pointer(k), _pointer(v), 0))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return v.raw


def keys(map_fd: int, size: int) -> list[bytes]:
    """All keys of a map; some may be missed while it changes."""
    found: list[bytes] = []
    after = ctypes.create_string_buffer(size)
    before: int = 0
    while True:
        try:
            bpf(MAP_GET_NEXT, struct.pack("=I4xQQ", map_fd, before, _pointer(after)))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return found
            raise
        found.append(after.raw)
        last = ctypes.create_string_buffer(after.raw, size)
        before = _pointer(last)


def describe(descriptor: int, size: int) -> bytes:
    """What the kernel tells of a map, program or link: ``size`` bytes of its ``bpf_*_info``."""
    info = ctypes.create_string_buffer(size)
    bpf(OBJ_GET_INFO, struct.pack("=IIQ", descriptor, size, _pointer(info)))
    return info.raw


def load_program(
    kind: int, instructions: bytes, name: str, attach: int = 0, function: int = 0
) -> int:
    """Have a program checked and taken; returns its descriptor.

    Raises OSError whose text ends with the last line of the verifier's log.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"GPL")

    def attributes(log: int, size: int) -> bytes:
        return struct.pack(
            "=IIQQIIQII16sIIIIQIIQII",
            kind, len(instructions) // 8, _pointer(code), _pointer(licence), int(bool(log)), size, log,
            0, 0, name.encode()[:15], 0, attach, 0, 0, 0, 0, 0, 0, 0, function,
        )  # fmt: skip

    try:
        return bpf(PROG_LOAD, attributes(0, 0))
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EINVAL, errno.E2BIG}:
            raise
        log = ctypes.create_string_buffer(1 << 20)
        try:
            return bpf(PROG_LOAD, attributes(_pointer(log), len(log)))
        except OSError as again:
            lines = log.value.decode("utf-8", "replace").strip().splitlines()
            said = [line for line in lines if not line.startswith(("processed", "verification"))]
            reason = f"{again.strerror}: {name}: {said[-1] if said else 'no reason told'}"
            raise OSError(again.errno, reason) from None


def attach_raw_tracepoint(program: int, name: str) -> int:
    """Attach to a raw tracepoint; closing what is returned detaches."""
    label = ctypes.create_string_buffer(name.encode())
    return bpf(RAW_TRACEPOINT_OPEN, struct.pack("=QI", _pointer(label), program))


def attach_tracepoint(program: int, identity: int) -> int:
    """Attach to a tracepoint by its number in tracefs, on all processors; closing detaches.

    perf_event_open(2): PERF_TYPE_TRACEPOINT; the program runs wherever the tracepoint does.
    """
    attributes = struct.pack("=IIQQQQQIIQ", 2, 64, identity, 1, 0, 0, 0, 1, 0, 0)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    number = _PERF_EVENT_OPEN[os.uname().machine]
    event = int(_libc.syscall(number, ctypes.byref(buffer), -1, 0, -1, ctypes.c_ulong(_CLOEXEC)))
    if event < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    try:
        fcntl.ioctl(event, _SET_BPF, program)
        fcntl.ioctl(event, _ENABLE, 0)
    except OSError:
        os.close(event)
        raise
    return event


def attach_iterator(program: int, attach: int) -> int:
    """Make a link of an iterator program."""
    return bpf(LINK_CREATE, struct.pack("=IIII", program, 0, attach, 0))


def open_iterator(link: int) -> int:
    """A descriptor that gives one walk when it is read to its end."""
    return bpf(ITER_CREATE, struct.pack("=II", link, 0))


def map_ring(map_fd: int, size: int) -> tuple[mmap.mmap, mmap.mmap]:
    """(what the consumer writes, what the producer writes) of a ring buffer of ``size`` bytes."""
    page = mmap.PAGESIZE
    consumer = mmap.mmap(map_fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
    producer = mmap.mmap(map_fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
    return consumer, producer
