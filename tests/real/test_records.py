"""The records as a C compiler lays them out, compared with how Python reads them, field by field."""

import re
import struct
import subprocess
from collections.abc import Iterator
from typing import Final

import pytest

from receipt_trace.kernel import records
from receipt_trace.kernel.objects import PROGRAMS
from receipt_trace.kernel.records import LAYOUTS, SAID, EofRecord, Kind, Record, ThreadFlag

from .support import need

pytestmark = pytest.mark.kernel

TYPES: Final = """
#include <stddef.h>
#include <stdio.h>
typedef unsigned char __u8; typedef unsigned short __u16; typedef unsigned int __u32;
typedef unsigned long long __u64; typedef int __s32; typedef long long __s64;
#include "records.h"
#define SIZE(s) printf("%s %zu\\n", #s, sizeof(struct s));
#define FIELD(s, f) printf("%s.%s %zu %zu\\n", #s, #f, offsetof(struct s, f), \\
                           sizeof(((struct s *)0)->f));
#define NUMBER(s, f) printf("%s.%s signed %d\\n", #s, #f, \\
                            (__typeof__(((struct s *)0)->f))-1 < 0);
#define VALUE(name) printf("%s %d\\n", #name, name);
"""
SAID_FIELDS: Final = ("time", "total", "kept", "tgid", "text")
RENAMED: Final = {"timeout_ms": "timeout"}
PAIRS: Final = {
    "inode": "where[{}].inode", "filesystem": "where[{}].filesystem", "time": "said_time[{}]",
    "kept": "said_kept[{}]", "tgid": "said_tgid[{}]",
}  # fmt: skip


def _in_c(record: type[Record], field: str) -> str:
    """What a field of ours is called in C."""
    name, number = re.fullmatch(r"([a-z_]+)(\d*)", field).groups()  # type: ignore[union-attr]
    if name == "arg":
        return f"args[{number}]"
    if record is EofRecord and number:
        return PAIRS[name].format(int(number) - 1)
    return RENAMED.get(field, field)


def _structs() -> Iterator[tuple[str, struct.Struct, tuple[str, ...]]]:
    """(name in C, layout, names of its fields in C)."""
    for record, layout in LAYOUTS.items():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", record.__name__).lower()
        yield name, layout, tuple(_in_c(record, field) for field in record._fields)
    yield "said", SAID, SAID_FIELDS


def _fields(layout: struct.Struct) -> Iterator[tuple[int, int, str]]:
    """(offset, size, code) of each value in a layout without padding of its own making."""
    assert layout.format[0] == "="
    at = 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout.format[1:]):
        if code in "sx":
            size = struct.calcsize(f"={count}{code}")
            if code == "s":
                yield at, size, code
            at += size
            continue
        for _ in range(int(count or 1)):
            yield at, struct.calcsize(f"={code}"), code
            at += struct.calcsize(f"={code}")


STRUCTS: Final = {name: (layout, fields) for name, layout, fields in _structs()}
CONSTANTS: Final = {
    **{f"RECORD_{kind.name}": int(kind) for kind in Kind},
    **{f"THREAD_{flag.name}": int(flag) for flag in ThreadFlag},
    **{name: getattr(records, name) for name in ("MEMBERS_GO_ON", "TEXT_BYTES", "SAID_BYTES")},
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the compiler says of all of it, one a line."""
    need("gcc")
    folder = tmp_path_factory.mktemp("records")
    body = [f"SIZE({name})" for name in STRUCTS]
    for name, (layout, fields) in STRUCTS.items():
        for field, (_, _, code) in zip(fields, _fields(layout), strict=True):
            body.append(f"FIELD({name}, {field})")
            if code != "s":
                body.append(f"NUMBER({name}, {field})")
    body += [f"VALUE({name})" for name in CONSTANTS]
    source = folder / "records.c"
    source.write_text(f"{TYPES}int main(void) {{ {' '.join(body)} return 0; }}\n")
    program = folder / "records"
    subprocess.run(
        ["gcc", "-Wall", "-Werror", "-I", str(PROGRAMS), "-o", str(program), str(source)],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_is_where_it_is_read(name: str, compiled: list[str]) -> None:
    """With its size and sign; and the whole is as large, so nothing was left out at its end."""
    layout, fields = STRUCTS[name]
    want = [f"{name} {layout.size}"]
    for field, (at, size, code) in zip(fields, _fields(layout), strict=True):
        want.append(f"{name}.{field} {at} {size}")
        if code != "s":
            want.append(f"{name}.{field} signed {int(code.islower())}")
    assert [line for line in compiled if re.match(rf"{name}[. ]", line)] == want


def test_names_for_numbers_are_the_same(compiled: list[str]) -> None:
    """Kinds, flags and sizes."""
    want = [f"{name} {value}" for name, value in CONSTANTS.items()]
    assert [line for line in compiled if line.split()[0] in CONSTANTS] == want


def test_no_name_is_missing_here() -> None:
    """Whatever the header names, Python names."""
    header = (PROGRAMS / "records.h").read_text()
    assert set(re.findall(r"\bRECORD_[A-Z]+\b", header)) == {f"RECORD_{kind.name}" for kind in Kind}
    named = set(re.findall(r"#define (THREAD_[A-Z]+)", header))
    assert named == {f"THREAD_{flag.name}" for flag in ThreadFlag}
    told = set(re.findall(r"^struct (\w+_record) {", header, re.MULTILINE))
    assert told == set(STRUCTS) - {"said"}
