"""BTF, the kernel's own description of its types (Documentation/bpf/btf.rst).

Only what is needed to find fields and function prototypes by name. Anonymous
structs and unions inside a struct are looked through, as C does.
"""

import functools
import struct
from collections.abc import Callable, Iterator
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MAGIC: Final = 0xEB9F
_HEADER: Final = struct.Struct("<HBBIIIII")
_TYPE: Final = struct.Struct("<III")
_MEMBER: Final = struct.Struct("<III")

# include/uapi/linux/btf.h
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF = range(1, 9)
_VOLATILE, _CONST, _RESTRICT, _FUNC, _FUNC_PROTO, _VAR, _DATASEC = range(9, 16)
_FLOAT, _DECL_TAG, _TYPE_TAG, _ENUM64 = range(16, 20)
_ALIASES: Final = frozenset({_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG})
_COMPOSITE: Final = frozenset({_STRUCT, _UNION})
_FIXED: Final = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_PER_ENTRY: Final = {
    _STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12,
}  # fmt: skip
_POINTER_BYTES: Final = 8
_ALIASES_MAX: Final = 64  # of one type, one after the other; kernels have a handful


class BtfError(ValueError):
    """These bytes are not BTF that can be read."""


class Field(NamedTuple):
    """Where a member lies in its struct, and how long it is; bytes."""

    at: int
    size: int


def _checked(
    read: Callable[Concatenate["Btf", P], T],
) -> Callable[Concatenate["Btf", P], T]:
    """Types that lead nowhere, or in a circle, are damage."""

    @functools.wraps(read)
    def checked(self: "Btf", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(self, *args, **kwargs)
        except BtfError:
            raise
        except (struct.error, IndexError, ValueError, RecursionError) as error:
            raise BtfError(f"a type cannot be read: {error}") from None

    return checked


class Btf:
    """The types of one kernel.

    Raises :class:`BtfError` when ``raw`` is not BTF, and later where it is damaged.
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) < _HEADER.size:
            raise BtfError(f"{len(raw)} bytes are too few for BTF")
        magic, _version, _flags, header, types, types_length, strings, strings_length = (
            _HEADER.unpack_from(raw)
        )
        if magic != _MAGIC:
            raise BtfError(f"the magic number is {magic:#06x}; expected {_MAGIC:#06x}")
        self._types = raw[header + types : header + types + types_length]
        self._strings = raw[header + strings : header + strings + strings_length]
        if len(self._types) != types_length or len(self._strings) != strings_length:
            raise BtfError(f"the file ends early: {len(raw)} bytes")
        self._offsets = [0]  # type 0 is void
        self._named: dict[bytes, list[int]] = {}
        self._index()

    @_checked
    def _index(self) -> None:
        """Note where each type begins, and the structs, typedefs and functions by name."""
        at, end, types = 0, len(self._types), self._types
        offsets, named = self._offsets, self._named
        kinds = _COMPOSITE | {_TYPEDEF, _FUNC}
        while at < end:
            name, info, _ = _TYPE.unpack_from(types, at)
            kind, entries = info >> 24 & 0x1F, info & 0xFFFF
            if kind in kinds and name:
                named.setdefault(self._name(name), []).append(len(offsets))
            offsets.append(at)
            at += 12 + _FIXED.get(kind, 0) + entries * _PER_ENTRY.get(kind, 0)

    @_checked
    def field(self, path: str) -> Field | None:
        """``struct.member.member…`` to its place; ``None`` where the kernel has no such member.

        The size is that of the whole member, an array's included.
        """
        name, *members = path.split(".")
        current = self._find(name, _COMPOSITE)
        at = 0
        for member in members:
            found = None if current is None else self._member(current, member)
            if found is None:
                return None
            offset, current = found
            at += offset
        return None if current is None else Field(at, self._size(current))

    @_checked
    def size(self, name: str) -> int | None:
        """Bytes of a struct; ``None`` where there is none of that name."""
        found = self._find(name, _COMPOSITE)
        return None if found is None else self._size(found)

    def function(self, name: str) -> int | None:
        """The number of a function's type, as ``attach_btf_id`` of bpf(2) wants it."""
        return self._find(name, frozenset({_FUNC}))

    @_checked
    def tracepoint(self, name: str) -> list[str] | None:
        """The types of a tracepoint's arguments, in the order a raw tracepoint program gets them.

        A pointer is told as ``task_struct*``. The first parameter in BTF is the caller's data.
        """
        alias = self._find(f"btf_trace_{name}", frozenset({_TYPEDEF}))
        if alias is None:
            return None
        _, _, pointer = self._type(self._plain(alias))
        _, info, _ = self._type(pointer)
        if info >> 24 & 0x1F != _FUNC_PROTO:
            return None
        start = self._offsets[pointer] + 12
        parameters = [
            struct.unpack_from("<II", self._types, start + 8 * n)[1] for n in range(info & 0xFFFF)
        ]
        return [self._spelled(parameter) for parameter in parameters[1:]]

    def _type(self, number: int) -> tuple[int, int, int]:
        """(name, info, size or type) of a type."""
        name, info, third = _TYPE.unpack_from(self._types, self._offsets[number])
        return name, info, third

    def _name(self, offset: int) -> bytes:
        return self._strings[offset : self._strings.index(b"\0", offset)]

    def _find(self, name: str, kinds: frozenset[int]) -> int | None:
        for number in self._named.get(name.encode(), ()):
            if self._type(number)[1] >> 24 & 0x1F in kinds:
                return number
        return None

    def _plain(self, number: int) -> int:
        """A type without its typedefs and qualifiers."""
        for _ in range(_ALIASES_MAX):
            if not number:
                return number
            _, info, target = self._type(number)
            if info >> 24 & 0x1F not in _ALIASES:
                return number
            number = target
        raise BtfError(f"type {number} is an alias of itself")

    def _member(self, composite: int, wanted: str) -> tuple[int, int] | None:
        """(offset in bytes, type) of a member, looked for in anonymous members too."""
        plain = self._plain(composite)
        for name, kind, bits in self._members(plain):
            if name == wanted.encode():
                return bits // 8, kind
            if not name:
                inner = self._member(kind, wanted)
                if inner is not None:
                    return bits // 8 + inner[0], inner[1]
        return None

    def _members(self, number: int) -> Iterator[tuple[bytes, int, int]]:
        """(name, type, offset in bits) of each member of a struct or union."""
        _, info, _ = self._type(number)
        if info >> 24 & 0x1F not in _COMPOSITE:
            return
        start = self._offsets[number] + 12
        for entry in range(info & 0xFFFF):
            name, kind, bits = _MEMBER.unpack_from(self._types, start + 12 * entry)
            # With the kind flag the upper byte is the width of a bit field.
            yield self._name(name), kind, bits & 0xFFFFFF if info >> 31 else bits

    def _size(self, number: int) -> int:
        number = self._plain(number)
        if not number:
            return 0
        _, info, third = self._type(number)
        kind = info >> 24 & 0x1F
        if kind == _PTR:
            return _POINTER_BYTES
        if kind == _ARRAY:
            element, _, count = struct.unpack_from("<III", self._types, self._offsets[number] + 12)
            return self._size(element) * int(count)
        return third if kind in {_INT, _STRUCT, _UNION, _ENUM, _ENUM64, _FLOAT} else 0

    def _spelled(self, number: int) -> str:
        """A type as C writes it, as far as telling arguments apart needs."""
        plain = self._plain(number)
        if not plain:
            return "void"
        name, info, third = self._type(plain)
        if info >> 24 & 0x1F == _PTR:
            return f"{self._spelled(third)}*"
        return self._name(name).decode("utf-8", "replace")
