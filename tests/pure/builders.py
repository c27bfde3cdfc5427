"""Small makers of the values that tests are about. Every one has sensible defaults."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from receipt_trace.observation import (
    Activity,
    Call,
    Console,
    Context,
    Descriptor,
    FileKind,
    Forest,
    Process,
    ProcessId,
    Program,
    Sample,
    Thread,
    Waiter,
    WaiterKey,
)
from receipt_trace.receipt import Clerk, Host, ResolutionPart
from receipt_trace.rule import Confirmed
from receipt_trace.trees import Agent, Tree

NS = 1_000_000_000
PERIOD = NS // 10
START = 500  # start time of every process that is not told another

SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGTSTP, SIGTTOU = (1 << n - 1 for n in (2, 3, 15, 17, 20, 22))

# -- descriptors ---------------------------------------------------------------------------


def tty(fd=0, number=1):
    """The slave side of a pseudo-terminal."""
    return Descriptor(fd, FileKind.TTY, f"pts:{number}", f"/dev/pts/{number}")


def ptmx(fd, number):
    """The master side of a pseudo-terminal."""
    return Descriptor(fd, FileKind.PTMX, f"pts:{number}", "/dev/ptmx")


def reads(fd, inode):
    """The end of a pipe that is read."""
    name = f"pipe:[{inode}]"
    return Descriptor(fd, FileKind.PIPE, name, name, readable=True, writable=False)


def writes(fd, inode):
    """The end of a pipe that is written."""
    name = f"pipe:[{inode}]"
    return Descriptor(fd, FileKind.PIPE, name, name, readable=False, writable=True)


def unix(fd, inode, peer=None):
    """One end of a unix socket; ``peer`` is the inode of the other."""
    name = f"socket:[{inode}]"
    return Descriptor(
        fd, FileKind.UNIX, name, name, peer=None if peer is None else f"socket:[{peer}]"
    )


def listener(fd, inode=800):
    """A unix socket that listens."""
    return Descriptor(fd, FileKind.LISTENER, f"socket:[{inode}]", f"socket:[{inode}]")


def tcp(fd, inode=900):
    """A network connection."""
    return Descriptor(fd, FileKind.OUTSIDE, f"socket:[{inode}]", f"socket:[{inode}]")


def inotify(fd):
    """Something anybody who touches a file can make ready."""
    return Descriptor(fd, FileKind.OUTSIDE, "anon_inode:inotify", "anon_inode:inotify")


def eventfd(fd):
    """Something only the tree itself can make ready."""
    return Descriptor(fd, FileKind.EVENT, "anon_inode:[eventfd]", "anon_inode:[eventfd]")


def pidfd(fd, pid):
    """A handle of a process; ready when that ends."""
    return Descriptor(fd, FileKind.PIDFD, str(pid), "anon_inode:[pidfd]")


# -- threads: what one does, to be given to a process ----------------------------------------


def blocked_read(fd=0, name="read"):
    """Blocked in a plain read."""
    return Thread(0, Activity.INPUT, Call(name, (fd,)))


def polls(*fds, timeout=None, name="poll"):
    """Blocked in a call that waits for several descriptors."""
    return Thread(0, Activity.INPUT, Call(name, fds, timeout, multiplexed=True))


def waits_for_somebody_unknown():
    """Blocked in an input call whose wait set could not be read."""
    return Thread(0, Activity.INPUT, Call("epoll_wait", None, None, multiplexed=True))


PARKED = Thread(0, Activity.PARKED)
SLEEPS = Thread(0, Activity.ACTIVE)
UNSEEN = Thread(0, Activity.UNKNOWN)


def process(pid, *threads, ppid=1, comm="prog", held=(), on=None, foreground=True, **more):
    """A process; ``on`` is the number of its controlling terminal, ``held`` its descriptors.

    Its first thread has the number of the process, the next ones follow.
    """
    group = more.pop("group", pid)
    in_front = {True: group, False: group + 1000, None: -1}[foreground]
    return Process(
        id=ProcessId(pid, START),
        ppid=ppid,
        comm=comm,
        group=group,
        session=more.pop("session", 10),
        terminal=None if on is None else f"pts:{on}",
        foreground=-1 if on is None else in_front,
        threads=tuple(
            Thread(pid + n * 10_000, t.activity, t.call, t.runs) for n, t in enumerate(threads)
        ),
        descriptors=None if held is None else {d.fd: d for d in held},
        **more,
    )


def forest(*processes, inputs=(), fed=(), console=None):
    """A picture; the first process is the root."""
    return Forest(
        processes[0].id,
        {p.id.pid: p for p in processes},
        frozenset(inputs),
        frozenset(fed),
        console,
    )


def console(**more):
    """The terminal a wrapper holds: line mode, echo on, last line ended, 10 in its foreground."""
    values = {"canonical": True, "echo": True, "foreground": 10, "unterminated": False}
    return Console("pts:1", "/dev/pts/1", **values | more)


# -- samples ---------------------------------------------------------------------------------


def waiter(pid=10, tid=None, key="pts:1", **more):
    """A thread that waits for a terminal."""
    values = {"comm": "asks", "wiring": "tty", "fd": 0, "target": "/dev/pts/1", "syscall": "read"}
    return Waiter(key=WaiterKey(pid, START, pid if tid is None else tid, key), **values | more)


def sample(at, *waiters, **more):
    """One look, ``at`` tenths of a second."""
    if "running" in more:
        more["running"] = frozenset(w.key[:3] for w in more["running"])
    for name in ("answered", "closed"):
        more[name] = frozenset(more.get(name, ()))
    return Sample(time=round(at * PERIOD), waiters=waiters, **more)


def context(output=b"", **more):
    """What is read for a receipt."""
    values = {
        "program": Program("asks", "/usr/bin/asks", ("asks", "--twice"), "/home/user"),
        "root": Program("sh", "/bin/sh", ("sh", "-c", "asks --twice"), "/home/user"),
        "uid": 1000,
        "canonical": True,
        "echo": True,
        "output": output,
        "output_source": "output",
        "terminal_output": True,
        "wall": 1_700_000_000 * NS,
    }
    return Context(**values | more)


# -- receipts --------------------------------------------------------------------------------


def receipt(pid=10, output=b"Go on? ", comm="asks", agent=None, argv=None, label=None, **more):
    """A receipt of a wait; ``more`` is of its context."""
    tree = Tree(ProcessId(10, START), label=label, agent=agent and Agent(agent, 5))
    if argv is not None:
        more |= {"program": Program(comm, f"/usr/bin/{comm}", argv, "/home/user")}
    return Clerk(Host("host", "boot"), "procfs").wait(
        tree, Confirmed(2 * NS, waiter(pid, comm=comm), NS, 0), context(output, **more)
    )


def many(count):
    """So many receipts, each of another program; quickly made."""
    one = receipt()
    return [replace(one, id=f"{n:012x}-0", wait=f"{n:012x}-0",
                    program=replace(one.program, pid=n)) for n in range(count)]  # fmt: skip


def resolved(wait, how="answered", waited_s=2.5, status=None):
    """The record that ends it."""
    return replace(
        wait,
        id=wait.id[:-1] + "0",
        event="resolved",
        resolution=ResolutionPart(how, waited_s, status),
    )


# -- a /proc of our own ------------------------------------------------------------------------


def stat_line(pid, comm=b"prog", state="S", **more):
    """A line as in proc_pid_stat(5); every field that is not named has a value of its own."""
    values = {
        "ppid": 1, "group": pid, "session": pid, "tty": 0, "foreground": -1,
        "utime": 0, "stime": 0, "cutime": 0, "cstime": 0, "threads": 1, "start": START,
        "exit_code": 0,
    } | more  # fmt: skip
    fields = [
        pid, b"(" + comm + b")", state, values["ppid"], values["group"], values["session"],
        values["tty"], values["foreground"], 4194304, 9001, 9002, 9003, 9004,
        values["utime"], values["stime"], values["cutime"], values["cstime"],
        20, 19, values["threads"], 9005, values["start"], *range(9100, 9129), values["exit_code"],
    ]  # fmt: skip
    return b" ".join(f if isinstance(f, bytes) else str(f).encode() for f in fields) + b"\n"


@dataclass
class FakeProc:
    """A tree of files like ``/proc``. ``lists_children`` is CONFIG_PROC_CHILDREN."""

    root: Path
    lists_children: bool = True
    parents: dict[int, int] = field(default_factory=dict)

    def add(self, pid, ppid=1, argv=("prog",), env=(), comm=None, exe=None, **more):
        """Add a process, or make an old one another (as exec does)."""
        name = comm if comm is not None else argv[0].rpartition("/")[2] if argv else "prog"
        directory = self.root / str(pid)
        (directory / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        (directory / "stat").write_bytes(stat_line(pid, name.encode(), ppid=ppid, **more))
        (directory / "cmdline").write_bytes(b"".join(a.encode() + b"\0" for a in argv))
        pairs = dict(env)
        (directory / "environ").write_bytes(
            b"".join(f"{k}={v}".encode() + b"\0" for k, v in pairs.items())
        )
        link = directory / "exe"
        link.unlink(missing_ok=True)
        os.symlink(exe or f"/usr/bin/{name}", link)
        self.parents[pid] = ppid
        self._list(pid)
        self._list(ppid)
        return directory

    def hold(self, pid, fds, info=None):
        """Let a process hold descriptors and no others; ``info`` is what fdinfo says of some."""
        directory = self.root / str(pid) / "fd"
        directory.mkdir(exist_ok=True)
        for link in directory.iterdir():
            link.unlink()
        for fd, target in fds.items():
            os.symlink(target, directory / str(fd))
        about = self.root / str(pid) / "fdinfo"
        about.mkdir(exist_ok=True)
        for fd, text in (info or {}).items():
            (about / str(fd)).write_text(text)

    def remove(self, pid):
        """The process is gone; its children are init's."""
        directory = self.root / str(pid)
        for path in sorted(directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        directory.rmdir()
        ppid = self.parents.pop(pid)
        for child, parent in list(self.parents.items()):
            if parent == pid:
                self.parents[child] = 1
        self._list(ppid)

    def _list(self, pid):
        if not self.lists_children or not (self.root / str(pid)).exists():
            return
        born = [child for child, parent in self.parents.items() if parent == pid]
        file = self.root / str(pid) / "task" / str(pid) / "children"
        file.write_text("".join(f"{child} " for child in born))
