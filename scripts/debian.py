"""Debian's kernels, out of the registry that this machine itself installs from.

Nothing of the machine's own package state is touched: lists and packages go into a folder of
the caller's. Only what a kernel says of itself leaves this module: its image, its modules,
and its types (BTF), for which it need not be booted.
"""

import contextlib
import functools
import lzma
import os
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SUITES: Final = (
    "bullseye-security",
    "bookworm-security",
    "trixie-security",
    "trixie-backports",
)
"""Small lists that hold the newest kernel of every series there is."""
_FLAVOUR: Final = "cloud-amd64"  # small, and with the same types as the generic one
_NAME: Final = re.compile(rf"linux-(image|binary|modules)-(\d+\.\d+)\.(\S+)-{_FLAVOUR}")
_SECONDS: Final = 300.0  # for one command; the registry is near or it is not there

# Documentation/arch/x86/boot.rst
_SETUP_SECTORS: Final = 0x1F1
_HEADER_MAGIC: Final = slice(0x202, 0x206)
_PAYLOAD: Final = 0x248
_SECTOR: Final = 512

_ELF: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")


class DebianError(Exception):
    """The registry, or a kernel out of it, is not what it should be; the text says why."""


class Kernel(NamedTuple):
    """One kernel of the registry: ``6.18``, ``6.18.15+deb13-cloud-amd64``.

    ``packages``: the first holds the kernel itself, and the last its modules, or they are
    no longer there.
    """

    series: str
    release: str
    packages: tuple[str, ...]


class Registry:
    """The registry of this machine, seen with suites of other releases.

    ``folder`` keeps its lists. Raises :class:`DebianError` where there is no apt, no keyring, or no
    answer.
    """

    def __init__(self, folder: Path) -> None:
        self.base, security = _bases()
        self._folder = folder.resolve()
        (self._folder / "lists/partial").mkdir(parents=True, exist_ok=True)
        (self._folder / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
        source = self._folder / "sources.list"
        source.write_text(
            "".join(
                f"deb [arch=amd64 signed-by={_KEYS}] "
                f"{security if suite.endswith('-security') else self.base} {suite} main\n"
                for suite in _SUITES
            )
        )
        self._options = [
            f"-oDir::Etc::sourcelist={source}",
            "-oDir::Etc::sourceparts=/dev/null",
            f"-oDir::State::lists={self._folder}/lists",
            f"-oDir::Cache={self._folder}/cache",
            "-oDir::State::status=/dev/null",
            "-oAPT::Architecture=amd64",
            "-oAPT::Sandbox::User=root",  # who downloads is who runs this
            "-oAcquire::Languages=none",
            "-oAcquire::Retries=2",
        ]

    @functools.cached_property
    def kernels(self) -> dict[str, Kernel]:
        """The newest kernel of every series (``6.18``), by series, oldest first."""
        done = _run(["apt-get", *self._options, "--error-on=any", "update"])
        if done.returncode:
            # A suite that has left the registry takes only its own kernels with it.
            done = _run(["apt-get", *self._options, "update"])
        names = _run(["apt-cache", *self._options, "pkgnames", "linux-"]).stdout.decode().split()
        found = newest(names)
        if not found:
            raise DebianError(f"the registry lists no kernel: {_last(done.stderr)}")
        return found

    def download(self, packages: Iterable[str], folder: Path) -> list[Path]:
        """Packages, fetched into an empty folder and checked by apt."""
        names = list(packages)
        done = _run(["apt-get", *self._options, "download", *names], folder=folder)
        if done.returncode:
            raise DebianError(f"{' '.join(names)} cannot be fetched: {_last(done.stderr)}")
        return sorted(folder.glob("*.deb"))


def newest(names: list[str]) -> dict[str, Kernel]:
    """The newest kernel of each series among names of packages, oldest series first.

    From 6.19 on the package of the image is empty, and ``linux-binary`` and
    ``linux-modules`` hold what it held.
    """
    parts: dict[tuple[str, str], set[str]] = {}
    for name in names:
        found = _NAME.fullmatch(name)
        if found:
            part, series, rest = found.groups()
            parts.setdefault((series, rest), set()).add(part)
    kernels: dict[str, Kernel] = {}
    for series, rest in sorted(parts, key=lambda key: (numbers(key[0]), numbers(key[1]))):
        release = f"{series}.{rest}-{_FLAVOUR}"
        has = parts[series, rest]
        used = (
            [part for part in ("binary", "modules") if part in has]
            if "binary" in has
            else ["image"]
        )
        if used[0] in has:
            packages = tuple(f"linux-{part}-{release}" for part in used)
            kernels[series] = Kernel(series, release, packages)
    return kernels


def choose(kernels: dict[str, Kernel], wanted: str) -> Kernel | None:
    """The kernel of a series, ``6.18``, or of the newest series that begins so: ``7``."""
    matching = [series for series in kernels if f"{series}.".startswith(f"{wanted}.")]
    return kernels[max(matching, key=numbers)] if matching else None


def files(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the files in a package whose whole path matches a regular expression.

    The package is unpacked no further than it is asked for.
    """
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(package)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as unpacking:
        assert unpacking.stdout is not None
        try:
            with tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar:
                for member in tar:
                    content = (
                        tar.extractfile(member) if re.fullmatch(pattern, member.name) else None
                    )
                    if content is not None:
                        yield member.name, content.read()
        except tarfile.TarError as error:
            raise DebianError(f"{package.name} cannot be unpacked: {error}") from None
        finally:
            unpacking.kill()


IMAGE: Final = r"\./(?:boot/vmlinuz-|usr/lib/modules/[^/]+/vmlinuz).*"


def image(packages: list[Path]) -> bytes:
    """The kernel itself, as a boot loader takes it."""
    for package in packages:
        for _, content in files(package, IMAGE):
            return content
    raise DebianError(f"no kernel in {', '.join(package.name for package in packages)}")


def modules(packages: list[Path], names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """(file name, content) of a kernel's modules with these names, unpacked; some are built in."""
    pattern = rf"\./(?:usr/)?lib/modules/.*/(?:{'|'.join(names)})\.ko(?:\.xz)?"
    for package in packages:
        for path, content in files(package, pattern):
            name = path.rpartition("/")[2]
            yield (
                name.removesuffix(".xz"),
                lzma.decompress(content) if name.endswith(".xz") else content,
            )


def extract_btf(kernel: bytes) -> bytes:
    """The types of a kernel, out of its image: section .BTF of what the image unpacks to.

    The same bytes as ``/sys/kernel/btf/vmlinux`` once it runs. Raises :class:`DebianError`.
    """
    if kernel[_HEADER_MAGIC] != b"HdrS":
        raise DebianError("not the image of an x86 kernel: no HdrS at 0x202")
    start = ((kernel[_SETUP_SECTORS] or 4) + 1) * _SECTOR
    offset, length = struct.unpack_from("<II", kernel, _PAYLOAD)
    return section(_decompress(kernel[start + offset : start + offset + length]), b".BTF")


def section(elf: bytes, wanted: bytes) -> bytes:
    """A section of a 64-bit ELF file by its name. Raises :class:`DebianError`."""
    try:
        head = _ELF.unpack_from(elf)
        if not head[0].startswith(b"\x7fELF\x02"):
            raise DebianError("what the image holds is no 64-bit ELF file")
        size, count, names = head[11:14]
        sections = [_SECTION.unpack_from(elf, head[6] + size * n) for n in range(count)]
        strings = sections[names]
        for name, _, _, _, at, length, *_ in sections:
            start = strings[4] + name
            if elf[start : elf.index(b"\0", start)] == wanted:
                return elf[at : at + length]
    except (struct.error, IndexError, ValueError) as error:
        raise DebianError(f"the ELF file in the image cannot be read: {error}") from None
    raise DebianError(f"the kernel has no section {wanted.decode()}")


def _decompress(payload: bytes) -> bytes:
    """Whatever a kernel is packed with; the last four bytes tell its size to the unpacker."""
    try:
        if payload.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=31).decompress(payload)
        if payload.startswith(b"\xfd7zXZ"):
            return lzma.LZMADecompressor().decompress(payload)
    except (zlib.error, lzma.LZMAError) as error:
        raise DebianError(f"the image cannot be unpacked: {error}") from None
    for magic, command in (
        (b"\x28\xb5\x2f\xfd", ["zstd", "-dcq"]),
        (b"\x02\x21\x4c\x18", ["lz4", "-dcq"]),
    ):
        if payload.startswith(magic):
            if shutil.which(command[0]) is None:
                raise DebianError(
                    f"{command[0]} is not installed; on Debian: apt-get install {command[0]}"
                )
            # The size behind the stream makes them complain, after all of it has come out.
            return _run(command, given=payload).stdout
    raise DebianError(f"packed in an unknown way: {payload[:4].hex()}")


def cache_folder() -> Path:
    """Where kernels are kept, and what was taken out of them."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "receipt-trace/kernels"


def fetch_btf(registry: Registry, kernel: Kernel, cache: Path) -> bytes:
    """The types of a kernel, from the cache or the registry. Raises :class:`DebianError`."""
    kept = cache / f"{kernel.release}.btf"
    with contextlib.suppress(OSError):
        return kept.read_bytes()
    with tempfile.TemporaryDirectory(prefix="receipt-trace-kernel-") as folder:
        found = extract_btf(image(registry.download(kernel.packages[:1], Path(folder))))
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as file:
        file.write(found)
    for older in cache.glob(f"{kernel.series}.*.btf"):
        older.unlink(missing_ok=True)
    Path(file.name).replace(kept)
    return found


def _bases() -> tuple[str, str]:
    """(base address of the main archive, of security updates), as this machine has them."""
    if shutil.which("apt-get") is None or not _KEYS.exists():
        raise DebianError("this machine does not install from Debian: no apt-get or no keyring")
    done = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"])
    targets = [line.split() for line in done.stdout.decode().splitlines()]
    targets = [t for t in targets if len(t) == 3 and t[2] == "main"]
    security = [uri for uri, release, _ in targets if release.endswith("-security")]
    main = [uri for uri, release, _ in targets if not release.endswith("-security")]
    if not main:
        raise DebianError(
            "this machine's package sources name no Debian archive; look at: apt-get indextargets"
        )
    return main[0], security[0] if security else f"{main[0].rstrip('/')}-security/"


def numbers(version: str) -> tuple[int, ...]:
    """What versions are compared by."""
    return tuple(map(int, re.findall(r"\d+", version)))


def _run(
    command: list[str], *, folder: Path | None = None, given: bytes | None = None
) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            command,
            cwd=folder,
            input=given or b"",
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DebianError(f"{command[0]}: {error}") from None


def _last(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
