"""Kernels out of packages: which is the newest, and its types out of its image."""

import gzip
import lzma
import shutil
import struct
import subprocess

import debian
import pytest
from hypothesis import given
from hypothesis import strategies as st

NAMES = [
    "linux-image-5.10.0-46-cloud-amd64",
    "linux-image-5.10.0-9-cloud-amd64",
    "linux-image-6.1.0-57-cloud-amd64",
    "linux-image-6.12.118+deb13-cloud-amd64",
    "linux-image-6.12.99+deb13-cloud-amd64",
    "linux-image-6.12-cloud-amd64",
    "linux-image-6.18.15+deb13-amd64",
    "linux-image-6.19.14+deb13-cloud-amd64",
    "linux-binary-6.19.14+deb13-cloud-amd64",
    "linux-image-7.3.4+deb13-cloud-amd64",
    "linux-image-7.3.4+deb13-cloud-amd64-dbg",
    "linux-binary-7.3.4+deb13-cloud-amd64",
    "linux-binary-unsigned-7.3.4+deb13-cloud-amd64",
    "linux-modules-7.3.4+deb13-cloud-amd64",
    "linux-modules-7.9.9+deb13-cloud-amd64",
    "linux-libc-dev",
]


def test_the_newest_kernel_of_each_series_is_found():
    """By number, not by letter; other flavours and packages that hold none are no kernels."""
    found = debian.newest(NAMES)
    assert {series: kernel.release for series, kernel in found.items()} == {
        "5.10": "5.10.0-46-cloud-amd64",
        "6.1": "6.1.0-57-cloud-amd64",
        "6.12": "6.12.118+deb13-cloud-amd64",
        "6.19": "6.19.14+deb13-cloud-amd64",
        "7.3": "7.3.4+deb13-cloud-amd64",
    }


def test_a_kernel_knows_its_packages():
    """The kernel itself in the first: one package before 6.19, several since."""
    found = debian.newest(NAMES)
    assert found["6.12"].packages == ("linux-image-6.12.118+deb13-cloud-amd64",)
    assert found["6.19"].packages == ("linux-binary-6.19.14+deb13-cloud-amd64",)
    assert found["7.3"].packages == (
        "linux-binary-7.3.4+deb13-cloud-amd64",
        "linux-modules-7.3.4+deb13-cloud-amd64",
    )


@pytest.mark.parametrize(
    ("wanted", "series"), [("6.1", "6.1"), ("6", "6.19"), ("7", "7.3"), ("5.1", None), ("8", None)]
)
def test_a_kernel_is_chosen_by_whole_numbers(wanted, series):
    """6.1 is not 6.12, and 6 is the newest of all that begin so."""
    chosen = debian.choose(debian.newest(NAMES), wanted)
    assert (chosen and chosen.series) == series


TYPES = b"\x9f\xeb what the kernel says of itself"


def elf(name=b".BTF", content=TYPES):
    """A 64-bit ELF file with one section of content, one of names."""
    names = b"\0" + name + b"\0.shstrtab\0"
    body = content + names
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, offset, length, 0, 0, 0, 0)
        for at, offset, length in (
            (0, 0, 0), (1, 64, len(content)), (len(name) + 2, 64 + len(content), len(names)),
        )
    )  # fmt: skip
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01", 2, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 3, 2,
    )  # fmt: skip
    return head + body + sections


def image(payload, sectors=3):
    """What a boot loader takes: sectors of set-up, then the packed kernel."""
    raw = bytearray((sectors + 1) * 512)
    raw[0x1F1] = sectors
    raw[0x202:0x206] = b"HdrS"
    raw[0x248:0x250] = struct.pack("<II", 100, len(payload) + 4)
    return bytes(raw) + bytes(100) + payload + struct.pack("<I", 12345) + b"and more"


def run(*command):
    """A packer, as a filter."""

    def pack(raw):
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed; scripts/setup --test")
        return subprocess.run(command, input=raw, capture_output=True, check=True).stdout

    return pack


@pytest.mark.parametrize(
    "pack", [gzip.compress, lzma.compress, run("zstd", "-c"), run("lz4", "-lc")],
    ids=["gzip", "xz", "zstd", "lz4"],
)  # fmt: skip
def test_types_are_found_however_the_kernel_is_packed(pack):
    """The four bytes that a kernel has behind the packed part belong to nobody."""
    assert debian.extract_btf(image(pack(elf()))) == TYPES


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not the image"),
        (bytes(4096), "not the image"),
        (image(b"????"), "unknown way: 3f3f3f3f"),
        (image(gzip.compress(b"no such file")), "cannot be read|no 64-bit ELF"),
        (image(gzip.compress(bytes(100))), "no 64-bit ELF"),
        (image(gzip.compress(elf(b".text"))), "no section .BTF"),
        (image(gzip.compress(elf()))[:-60], "unpacked|cannot be read"),
        (image(lzma.compress(elf()))[:-60], "unpacked|cannot be read"),
    ],
)
def test_what_is_no_kernel_is_refused_with_the_reason(raw, reason):
    """Empty, foreign, packed otherwise, without types, torn."""
    with pytest.raises(debian.DebianError, match=reason):
        debian.extract_btf(raw)


@given(st.binary(max_size=300))
def test_garbage_raises_nothing_but_its_error(garbage):
    """Whatever comes, as an image, as what is packed, as the ELF file in it."""
    for raw in (garbage, image(garbage), image(gzip.compress(garbage)), image(b"\x1f\x8b" + garbage),
                image(b"\xfd7zXZ" + garbage), image(gzip.compress(elf()[:64] + garbage))):  # fmt: skip
        with pytest.raises(debian.DebianError):
            debian.extract_btf(raw)


@pytest.fixture
def package(tmp_path):
    """A package with a kernel and modules, as Debian makes them."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed: not a Debian")
    tree = tmp_path / "tree"
    for name, content in {
        "DEBIAN/control": b"Package: linux-image\nVersion: 1\nArchitecture: all\n"
        b"Maintainer: nobody <nobody@example.org>\nDescription: a kernel\n",
        "boot/System.map-6.1.0": b"",
        "boot/vmlinuz-6.1.0": b"the kernel",
        "usr/lib/modules/6.1.0/kernel/drivers/virtio/virtio.ko.xz": lzma.compress(b"packed"),
        "usr/lib/modules/6.1.0/kernel/drivers/block/virtio_blk.ko": b"plain",
        "usr/lib/modules/6.1.0/kernel/drivers/block/loop.ko": b"unwanted",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    path = tmp_path / "linux-image.deb"
    subprocess.run(["dpkg-deb", "--build", tree, path], check=True, capture_output=True)
    return path


def test_a_kernel_is_taken_out_of_its_package(package):
    """And the modules that are wanted, unpacked."""
    assert debian.image([package]) == b"the kernel"
    found = dict(debian.modules([package], ("virtio", "virtio_blk", "virtio_pci")))
    assert found == {"virtio.ko": b"packed", "virtio_blk.ko": b"plain"}


def test_a_package_that_is_none_is_refused(tmp_path):
    """With its name."""
    path = tmp_path / "torn.deb"
    path.write_bytes(b"!<arch>\n")
    with pytest.raises(debian.DebianError, match=r"torn\.deb"):
        debian.image([path])
