"""Turn the C programs into what the kernel takes. Run as a process of its own.

    python3 -c '… main()' FOLDER-OF-THE-PROGRAMS

bcc's compiler is 150 MB large, changes the directory of its process and ends it when it is broken:
so it never runs in the daemon. What comes out is one JSON object on standard output
(see :func:`build`), good for this kernel and these programs until either changes.
"""

import base64
import json
import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from receipt_trace.kernel import syscall
from receipt_trace.kernel.btf import Btf, BtfError
from receipt_trace.kernel.fields import resolve
from receipt_trace.kernel.headers import write_headers

BTF: Final = Path("/sys/kernel/btf/vmlinux")
SOURCES: Final = ("records.h", "kernel.h", "snapshot.c", "lifecycle.c", "calls.c", "text.c")
MAPS: Final = (
    "settings", "marks", "wanted", "questions", "calls", "scratch", "walks", "events", "losses",
    "said", "took", "heard", "given", "blank", "nurses",
)  # fmt: skip
PROGRAMS: Final = (
    "snapshot_threads", "snapshot_processes", "snapshot_files", "snapshot_polls",
    "snapshot_epolls", "snapshot_texts", "on_fork", "on_exec", "on_exit",
    "on_enter", "on_leave", "on_write", "on_read",
)  # fmt: skip

_INSTRUCTION: Final = 8
_LOAD_WIDE: Final = 0x18
_FROM_MAP: Final = 1  # BPF_PSEUDO_MAP_FD


class BuildError(Exception):
    """The programs cannot be made for this kernel; the text says why."""


def build(folder: Path, btf: bytes) -> dict[str, Any]:
    """Compile the programs for the kernel whose types are given.

    ``programs``: name to its instructions (base64) and to which map each of its references
    goes; ``maps``: name to (type, key size, value size, entries, flags); ``functions`` and
    ``lost`` as in :class:`receipt_trace.kernel.fields.Layout`.
    """
    layout = resolve(Btf(btf))
    if layout.missing:
        raise BuildError(f"this kernel has no {', no '.join(layout.missing)}")
    text = "".join(f"#define {name} {value}\n" for name, value in layout.definitions.items())
    for name in SOURCES:
        text += f'#line 1 "{name}"\n{(folder / name).read_text()}'
    from bcc import BPF  # noqa: PLC0415  (only where it is there)

    with tempfile.TemporaryDirectory(prefix="receipt-trace-") as headers:
        write_headers(Path(headers))
        os.environ["BCC_KERNEL_SOURCE"] = headers
        module = BPF(text=text)
    maps = {name: _description(module[name].map_fd) for name in MAPS}
    places = {module[name].map_fd: name for name in MAPS}
    programs = {}
    for name in PROGRAMS:
        code, references = _relocatable(module.dump_func(name), places)
        programs[name] = {"code": base64.b64encode(code).decode(), "maps": references}
    return {
        "programs": programs,
        "maps": maps,
        "functions": layout.functions,
        "lost": list(layout.lost),
    }


def _description(map_fd: int) -> list[int]:
    """(type, key size, value size, entries, flags) of a map, from the kernel itself."""
    kind, _, key, value, entries, flags = struct.unpack_from("=6I", syscall.describe(map_fd, 88))
    return [kind, key, value, entries, flags]


def _relocatable(code: bytes, places: dict[int, str]) -> tuple[bytes, dict[int, str]]:
    """A program without the descriptors of this process, and the maps they stood for."""
    clean, references = bytearray(code), {}
    for at in range(0, len(code), _INSTRUCTION):
        operation, registers, _, value = struct.unpack_from("=BBhi", code, at)
        if operation == _LOAD_WIDE and registers >> 4 == _FROM_MAP:
            references[at // _INSTRUCTION] = places[value]
            struct.pack_into("=i", clean, at + 4, 0)
    return bytes(clean), references


def main() -> int:
    """Build and write the object; a reason on standard error and status 1 where that fails."""
    try:
        built = build(Path(sys.argv[1]), BTF.read_bytes())
    except (BuildError, BtfError, OSError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception as error:  # noqa: BLE001  (bcc raises plain exceptions)
        sys.stderr.write(f"bcc: {error}\n")
        return 1
    json.dump(built, sys.stdout)
    return 0
