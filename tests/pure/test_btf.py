"""The kernel's description of its types: read by name, and never trusted."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.kernel.btf import Btf, BtfError, Field
from receipt_trace.kernel.fields import FIELDS, resolve

INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF = range(1, 9)
CONST, FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = (
    10, 12, 13, 14, 15, 16, 17, 18, 19,
)  # fmt: skip
VOID = 0


class Types:
    """BTF made by hand (include/uapi/linux/btf.h); what is added returns its number."""

    def __init__(self):
        self.types, self.strings, self.count = b"", b"\0", 0

    def name(self, text):
        """The place of a name among the strings."""
        if not text:
            return 0
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text) - 1

    def add(self, kind, name="", third=0, rest=b"", entries=0, flag=0):
        """One type: its three words, and what its kind has behind them."""
        info = flag << 31 | kind << 24 | entries
        self.types += struct.pack("<III", self.name(name), info, third) + rest
        self.count += 1
        return self.count

    def integer(self, name, size):
        """An integer."""
        return self.add(INT, name, size, struct.pack("<I", size * 8))

    def array(self, element, count, index):
        """An array."""
        return self.add(ARRAY, rest=struct.pack("<III", element, index, count))

    def composite(self, name, size, *members, kind=STRUCT, flag=0):
        """A struct or union; members are (name, type, offset in bits)."""
        rest = b"".join(struct.pack("<III", self.name(n), t, at) for n, t, at in members)
        return self.add(kind, name, size, rest, len(members), flag)

    def prototype(self, *parameters):
        """The type of a function that returns nothing."""
        rest = b"".join(struct.pack("<II", 0, parameter) for parameter in parameters)
        return self.add(FUNC_PROTO, rest=rest, entries=len(parameters))

    def raw(self):
        """The whole of it."""
        head = struct.pack(
            "<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.types), len(self.types), len(self.strings)
        )
        return head + self.types + self.strings


def kernel():
    """A few types as kernels have them: nested, nameless, aliased, packed into bits."""
    types = Types()
    byte = types.integer("unsigned char", 1)
    word = types.integer("unsigned int", 4)
    true = types.integer("_Bool", 1)
    alias = types.add(TYPEDEF, "u32", word)
    constant = types.add(CONST, third=alias)
    types.add(FWD, "task_struct")
    task = types.composite("task_struct", 40)
    pointer = types.add(PTR, third=task)
    many = types.array(byte, 16, word)
    inner = types.composite("", 8, ("low", word, 0), ("high", constant, 32), kind=UNION)
    types.add(ENUM, "colour", 4, struct.pack("<Ii", 0, 1), 1)
    types.add(ENUM64, "shade", 8, struct.pack("<III", 0, 1, 0), 1)
    real = types.add(FLOAT, "double", 8)
    tag = types.add(TYPE_TAG, "rcu", task)
    types.add(VAR, "here", word, struct.pack("<I", 1))
    types.add(DATASEC, ".data", 4, struct.pack("<III", 1, 0, 4), 1)
    types.add(DECL_TAG, "mark", word, struct.pack("<i", -1))
    types.composite(
        "outer", 64,
        ("first", alias, 0), ("name", many, 32), ("", inner, 192), ("task", pointer, 256),
        ("ratio", real, 320),
    )  # fmt: skip
    types.composite("bits", 8, ("one", word, 1 << 24 | 32), ("two", word, 3 << 24 | 33), flag=1)
    types.composite("user", 16, ("out", types.count - 1, 64))
    call = types.prototype(types.add(PTR), true, pointer, types.add(PTR, third=tag), alias)
    types.add(TYPEDEF, "btf_trace_sched_switch", types.add(PTR, third=call))
    types.add(TYPEDEF, "btf_trace_nonsense", pointer)
    types.add(FUNC, "bpf_iter_task", types.prototype(), entries=1)
    return types.raw()


KERNEL = kernel()


@pytest.fixture(scope="module")
def btf():
    return Btf(KERNEL)


@pytest.mark.parametrize(
    ("path", "at", "size"),
    [
        ("outer.first", 0, 4),
        ("outer.name", 4, 16),
        ("outer.task", 32, 8),
        ("outer.ratio", 40, 8),
        ("user.out.name", 12, 16),
        ("bits.two", 4, 4),
    ],
)
def test_a_member_is_found_by_its_path(btf, path, at, size):
    """Offsets add up, sizes are those of the type behind every alias; arrays count whole."""
    assert btf.field(path) == Field(at, size)


@pytest.mark.parametrize(("path", "at"), [("outer.low", 24), ("outer.high", 28)])
def test_nameless_members_are_looked_through(btf, path, at):
    """As C does."""
    assert btf.field(path) == Field(at, 4)


@pytest.mark.parametrize("path", ["outer.third", "nobody.first", "outer.first.deeper", "u32.first"])
def test_what_a_kernel_has_not_is_none(btf, path):
    """Neither guessed nor an error."""
    assert btf.field(path) is None


def test_a_declaration_alone_is_no_struct(btf):
    """The struct of the same name is found behind it."""
    assert btf.size("task_struct") == 40
    assert btf.size("nobody") is None


def test_a_tracepoint_tells_its_arguments_in_order(btf):
    """Without the caller's data that comes first in BTF; aliases and tags are looked through."""
    arguments = ["_Bool", "task_struct*", "task_struct*", "unsigned int"]
    assert btf.tracepoint("sched_switch") == arguments


@pytest.mark.parametrize("name", ["nobody", "nonsense"])
def test_what_is_no_tracepoint_has_no_arguments(btf, name):
    """Whatever its name says."""
    assert btf.tracepoint(name) is None


def test_a_function_is_known_by_its_number(btf):
    """Types are counted from 1."""
    assert btf.function("bpf_iter_task") == len(btf._offsets) - 1
    assert btf.function("outer") is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "too few"),
        (bytes(24), "magic"),
        (KERNEL[:-1], "ends early"),
        (KERNEL[:40], "ends early"),
    ],
)
def test_what_is_no_btf_is_refused_with_the_reason(raw, reason):
    """An empty, a foreign and a torn file."""
    with pytest.raises(BtfError, match=reason):
        Btf(raw)


def test_names_outside_the_strings_are_refused():
    """A type that points behind the end is damage."""
    types = Types()
    types.types = struct.pack("<III", 9999, STRUCT << 24, 0)
    with pytest.raises(BtfError):
        Btf(types.raw())


def test_types_that_lead_in_a_circle_are_refused():
    """An alias of itself, a struct inside itself, an array of itself, a pointer to itself."""
    types = Types()
    alias = types.add(TYPEDEF, "btf_trace_round", 1)
    types.composite("round", 8, ("", types.count + 1, 0))
    array = types.array(types.count + 1, 2, 1)
    types.composite("held", 8, ("alias", alias, 0), ("array", array, 0))
    pointer = types.add(PTR, third=types.count + 1)
    call = types.prototype(VOID, pointer)
    types.add(TYPEDEF, "btf_trace_call", types.add(PTR, third=call))
    btf = Btf(types.raw())
    for ask in (
        lambda: btf.field("round.nobody"),
        lambda: btf.field("held.alias"),
        lambda: btf.field("held.array"),
        lambda: btf.tracepoint("round"),
        lambda: btf.tracepoint("call"),
    ):
        with pytest.raises(BtfError):
            ask()


def ask_everything(raw):
    """Whatever the bytes are, an answer or BtfError."""
    with contextlib.suppress(BtfError):
        resolve(Btf(raw))
    with contextlib.suppress(BtfError):
        btf = Btf(raw)
        for path in ("outer.name", "outer.high", "bits.two", "user.out.ratio", "outer.nobody"):
            with contextlib.suppress(BtfError):
                btf.field(path)
        for name in ("sched_switch", "nonsense"):
            with contextlib.suppress(BtfError):
                btf.tracepoint(name)


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_its_error(garbage):
    """Whatever comes."""
    ask_everything(garbage)
    ask_everything(KERNEL[:24] + garbage)


@given(st.lists(st.tuples(st.integers(0, len(KERNEL) - 1), st.integers(0, 255)), max_size=8))
def test_damage_raises_nothing_but_its_error(damage):
    """Bytes of a good file that are others."""
    raw = bytearray(KERNEL)
    for at, value in damage:
        raw[at] = value
    ask_everything(bytes(raw))


def test_what_a_kernel_lacks_is_named():
    """Each thing the programs cannot do without, and what is lost without the others."""
    layout = resolve(Btf(KERNEL))
    needed = [" or ".join(need.paths) for need in FIELDS if not need.lost]
    assert layout.missing[: len(needed)] == tuple(needed)
    assert "argument 1 of type task_struct* of sched_process_exit" in layout.missing
    assert "function bpf_iter_task_file" in layout.missing
    assert set(layout.lost) == {need.lost for need in FIELDS if need.lost}
    assert layout.functions == {"bpf_iter_task": Btf(KERNEL).function("bpf_iter_task")}


def test_a_field_is_found_by_an_older_name():
    """The newest first."""
    types = Types()
    word = types.integer("unsigned long", 8)
    types.composite("task_struct", 64, ("state", word, 128))
    definitions = resolve(Btf(types.raw())).definitions
    assert (definitions["AT_task_state"], definitions["BYTES_task_state"]) == (16, 8)
    assert definitions["HAS_task_state"] == 1
    assert definitions["HAS_task_read"] == 0
