"""Who waits for whom: pictures of trees in, waiters out."""

from dataclasses import replace

import pytest
from builders import (
    PARKED,
    SIGCHLD,
    SIGINT,
    SIGQUIT,
    SIGTERM,
    SIGTSTP,
    SIGTTOU,
    SLEEPS,
    START,
    UNSEEN,
    blocked_read,
    console,
    eventfd,
    forest,
    inotify,
    listener,
    pidfd,
    polls,
    process,
    ptmx,
    reads,
    tcp,
    tty,
    unix,
    waits_for_somebody_unknown,
    writes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from receipt_trace.descriptors import Findings, find_waiters
from receipt_trace.observation import (
    Activity,
    Call,
    Console,
    Descriptor,
    FileKind,
    Forest,
    Process,
    ProcessId,
    Thread,
    Waiter,
    WaiterKey,
)

STDIN = "pipe:[7]"  # what the harness gave the root to read


def waiters(*processes, inputs=(STDIN,), **more):
    """(process, descriptor) of every waiter."""
    found = find_waiters(forest(*processes, inputs=inputs, **more)).waiters
    return [(w.key.pid, w.fd) for w in found]


# -- the plain cases -----------------------------------------------------------------------------


def test_a_reader_of_the_harness_pipe_is_a_waiter():
    """It is named by its thread and the object it reads, with all that is known of its call."""
    asks = process(10, blocked_read(), comm="rm", held=[reads(0, 7), writes(1, 8)])
    assert find_waiters(forest(asks, inputs=[STDIN])) == Findings(
        (
            Waiter(
                key=WaiterKey(10, START, 10, STDIN),
                comm="rm",
                wiring="pipe",
                fd=0,
                target=STDIN,
                syscall="read",
                wait_set=("0=pipe:[7]",),
            ),
        )
    )


def test_a_reader_of_the_harness_terminal_is_a_waiter():
    """Nobody in the tree drives that terminal."""
    (found,) = find_waiters(forest(process(10, blocked_read(), on=1, held=[tty()]))).waiters
    assert (found.key.input, found.wiring, found.target) == ("pts:1", "tty", "/dev/pts/1")


def test_a_reader_of_the_harness_socket_is_a_waiter():
    """A harness in Node gives its children socketpairs."""
    asks = process(10, blocked_read(name="recvfrom"), held=[unix(0, 7, peer=8)])
    (found,) = find_waiters(forest(asks, inputs=["socket:[7]"])).waiters
    assert (found.wiring, found.target, found.syscall) == ("socket", "socket:[7]", "recvfrom")


def test_a_descendant_inherits_the_input():
    """The program that asks need not be the one the harness started."""
    shell = process(10, PARKED, held=[reads(0, 7)])
    asks = process(11, blocked_read(), ppid=10, held=[reads(0, 7)])
    assert waiters(shell, asks) == [(11, 0)]


@pytest.mark.parametrize("name", ["poll", "ppoll", "select", "pselect6", "epoll_wait"])
def test_waiting_for_the_terminal_alone_is_waiting_for_input(name):
    """How it waits does not matter, and a time-out proves nothing."""
    asks = process(10, polls(0, timeout=0.5, name=name), on=1, held=[tty()])
    (found,) = find_waiters(forest(asks)).waiters
    assert (found.syscall, found.timeout) == (name, 0.5)


def test_the_second_thread_may_be_the_one_that_asks():
    """It is named by its own number; what its sisters do is no matter."""
    asks = process(10, SLEEPS, blocked_read(), held=[reads(0, 7)])
    (found,) = find_waiters(forest(asks, inputs=[STDIN])).waiters
    assert found.key == WaiterKey(10, START, 10_010, STDIN)


@pytest.mark.parametrize("thread", [SLEEPS, PARKED, UNSEEN])
def test_who_does_not_wait_for_input_is_no_waiter(thread):
    """Slow, sleeping and waiting for a child are not asking."""
    assert waiters(process(10, thread, on=1, held=[tty(), reads(5, 7)])) == []


def test_a_pipe_of_somebody_else_is_not_the_harness_input():
    """Its writer is neither in the tree nor the one who started it."""
    found = find_waiters(forest(process(10, blocked_read(3), held=[reads(3, 99)]), inputs=[STDIN]))
    assert found == Findings()


def test_an_input_that_is_always_ready_does_not_stand_in_the_way():
    """/dev/null and regular files in the set are nobody's promise."""
    null = Descriptor(4, FileKind.NULL, "/dev/null", "/dev/null")
    file = Descriptor(5, FileKind.FILE, "/tmp/x", "/tmp/x")
    assert waiters(process(10, polls(0, 4, 5), on=1, held=[tty(), null, file])) == [(10, 0)]


# -- idle shells and servers ---------------------------------------------------------------------

JOBS = SIGTSTP | SIGTTOU
PROMPTING = {"ignored": JOBS | SIGTERM | SIGQUIT, "caught": SIGINT | SIGCHLD}


@pytest.mark.parametrize(
    ("ignored", "caught"),
    [
        (JOBS | SIGTERM | SIGQUIT, SIGINT | SIGCHLD),
        (JOBS | SIGQUIT, SIGINT | SIGTERM | SIGCHLD),
        (JOBS, SIGINT | SIGQUIT | SIGTERM | SIGCHLD),
        (SIGTTOU, SIGINT | SIGQUIT | SIGTERM | SIGTSTP | SIGCHLD),
        (JOBS | SIGINT | SIGTERM | SIGQUIT, SIGCHLD),
    ],
    ids=["bash, dash, zsh, tcsh", "fish", "mksh, elvish", "ksh93", "that found SIGINT ignored"],
)
def test_an_idle_shell_on_its_terminal_is_no_waiter(ignored, caught):
    """It has job control and keeps its line on SIGINT: it is between two commands."""
    shell = {"ignored": ignored, "caught": caught, "on": 1, "held": [tty()]}
    assert waiters(process(10, blocked_read(), **shell)) == []
    assert waiters(process(10, polls(0), **shell)) == []


@pytest.mark.parametrize(
    ("ignored", "caught"),
    [
        (JOBS, SIGINT | SIGQUIT | SIGTERM),
        (JOBS | SIGINT | SIGTERM | SIGQUIT, 0),
        (JOBS | SIGTERM | SIGQUIT, SIGCHLD),
        (SIGTSTP | SIGTERM | SIGQUIT, SIGINT | SIGCHLD),
        (SIGTTOU | SIGTERM | SIGQUIT, SIGINT | SIGCHLD),
        (JOBS | SIGQUIT, SIGINT | SIGCHLD),
        (JOBS | SIGTERM, SIGINT | SIGCHLD),
        (JOBS, SIGINT | SIGCHLD),
        (SIGTERM | SIGQUIT, SIGINT | SIGCHLD),
        (0, SIGINT | SIGCHLD),
    ],
    ids=[
        "an editor below `bash -i -c`", "passwd", "no SIGINT", "no SIGTTOU", "no SIGTSTP",
        "no SIGTERM", "no SIGQUIT", "neither", "no job control", "a script with a trap",
    ],
)  # fmt: skip
def test_a_program_with_only_some_of_a_shells_signals_asks(ignored, caught):
    """A script that traps SIGINT around its question still asks it."""
    asks = process(10, blocked_read(), on=1, held=[tty()], ignored=ignored, caught=caught)
    assert waiters(asks) == [(10, 0)]


def test_an_idle_interactive_shell_on_a_pipe_is_no_waiter():
    """It reads its command channel; without job control it ignores SIGQUIT and SIGTERM."""
    shell = process(
        10, blocked_read(), held=[reads(0, 7)], ignored=SIGQUIT | SIGTERM, caught=SIGINT | SIGCHLD
    )
    assert waiters(shell) == []


@pytest.mark.parametrize(
    ("ignored", "caught"),
    [
        (SIGTERM, SIGINT | SIGCHLD),
        (SIGQUIT, SIGINT | SIGCHLD),
        (SIGTERM | SIGQUIT, SIGINT),
        (SIGTERM | SIGQUIT, SIGCHLD),
        (SIGINT | SIGTERM | SIGQUIT, SIGCHLD),
    ],
)
def test_a_root_with_only_some_of_a_shells_signals_asks_on_a_pipe(ignored, caught):
    """What it ignores may be inherited from the shell that started it."""
    asks = process(10, blocked_read(), held=[reads(0, 7)], ignored=ignored, caught=caught)
    assert waiters(asks) == [(10, 0)]


def test_an_interactive_shell_below_the_root_asks_on_a_pipe():
    """It would eat what is meant for the root."""
    root = process(10, PARKED, held=[reads(0, 7)])
    shell = process(11, blocked_read(), ppid=10, held=[reads(0, 7)], **PROMPTING)
    assert waiters(root, shell) == [(11, 0)]


def test_a_command_below_an_idle_shell_asks():
    """The shell has a child in the foreground, so nothing is idle."""
    shell = process(10, PARKED, on=1, held=[tty()], foreground=False, **PROMPTING)
    asks = process(11, blocked_read(), ppid=10, on=1, held=[tty()])
    assert waiters(shell, asks) == [(11, 0)]


def test_a_fed_root_is_no_waiter():
    """A server between two requests has nothing to ask."""
    server = process(10, blocked_read(), held=[reads(0, 7)])
    assert waiters(server) == [(10, 0)]
    assert waiters(server, fed=[STDIN]) == []


def test_a_descendant_of_a_fed_root_is_a_waiter():
    """It would eat the next request."""
    server = process(10, PARKED, held=[reads(0, 7)])
    asks = process(11, blocked_read(), ppid=10, held=[reads(0, 7)])
    assert waiters(server, asks, fed=[STDIN]) == [(11, 0)]


# -- somebody in the tree is to act --------------------------------------------------------------


def test_a_reader_whose_producer_sleeps_is_no_waiter():
    """`sleep 9 | cat`: the tree itself will go on."""
    shell = process(10, PARKED, held=[reads(0, 7)])
    sleeps = process(11, SLEEPS, ppid=10, held=[reads(0, 7), writes(1, 9)])
    cat = process(12, blocked_read(), ppid=10, held=[reads(0, 9)])
    assert waiters(shell, sleeps, cat) == []


def test_of_a_pipeline_the_one_that_asks_is_named():
    """`asks | cat`: cat only waits for it."""
    shell = process(10, PARKED, held=[reads(0, 7)])
    asks = process(11, blocked_read(), ppid=10, held=[reads(0, 7), writes(1, 9)])
    cat = process(12, blocked_read(), ppid=10, held=[reads(0, 9)])
    assert waiters(shell, asks, cat) == [(11, 0)]


def test_a_process_substitution_is_no_question():
    """`cat <(sleep 9)` reads a pipe of the tree beside an untouched terminal."""
    cat = process(10, blocked_read(63), on=1, held=[tty(), reads(63, 9)])
    sleeps = process(11, SLEEPS, ppid=10, on=1, held=[tty(), writes(1, 9)])
    assert waiters(cat, sleeps) == []


def test_a_reader_of_terminal_and_pipe_waits_for_whom_may_act():
    """A producer that works may wake it; one that is stuck itself cannot."""
    held = [tty(), reads(5, 9)]
    for producer, expected in ((SLEEPS, []), (PARKED, [(10, 0)])):
        reader = process(10, polls(0, 5), on=1, held=held)
        other = process(11, producer, ppid=1, held=[writes(1, 9)])
        assert waiters(reader, other) == expected


def test_a_grandchild_that_works_keeps_its_line_alive():
    """A parked shell in between does not make its sleeping child quiet."""
    cat = process(10, polls(0, 5), on=1, held=[tty(), reads(5, 9)])
    shell = process(11, PARKED, ppid=1, held=[writes(1, 9)])
    sleeps = process(12, SLEEPS, ppid=11)
    assert waiters(cat, shell, sleeps) == []


def test_the_dead_do_not_act():
    """A zombie holds nothing up."""
    cat = process(10, polls(0, 5), on=1, held=[tty(), pidfd(5, 11)])
    for state, expected in (("S", []), ("Z", [(10, 0)])):
        child = process(11, SLEEPS, ppid=10, state=state)
        assert waiters(cat, child) == expected


def test_two_that_wait_for_each_other_ask_nobody():
    """A deadlock inside the tree is not a question to the harness."""
    one = process(10, blocked_read(3), held=[reads(3, 8), writes(4, 9)])
    two = process(11, blocked_read(3), ppid=10, held=[reads(3, 9), writes(4, 8)])
    assert waiters(one, two) == []


def test_a_chain_falls_with_its_head():
    """Three readers behind one that sleeps: each strikes off the next."""
    head = process(10, SLEEPS, held=[writes(1, 20)])
    links = [
        process(n, polls(0, 5), ppid=1, on=1, held=[tty(), reads(5, n + 9), writes(6, n + 10)])
        for n in (11, 12, 13)
    ]
    assert waiters(head, *links) == []


def test_a_socketpair_inside_the_tree_is_inside():
    """Its other end belongs to a child that works."""
    parent = process(10, polls(0, 5), on=1, held=[tty(), unix(5, 30, peer=31)])
    for activity, expected in ((SLEEPS, []), (PARKED, [(10, 0)])):
        child = process(11, activity, ppid=10, held=[unix(5, 31, peer=30)])
        assert waiters(parent, child) == expected


def test_a_program_that_watches_its_input_beside_a_working_child_is_no_waiter():
    """Whatever ends first: it is not stuck before its child is."""
    held = [tty(), eventfd(4)]
    for activity, expected in ((SLEEPS, []), (PARKED, [(10, 0)])):
        parent = process(10, polls(0, 4), on=1, held=held)
        child = process(11, activity, ppid=10)
        assert waiters(parent, child) == expected


def test_a_program_that_reads_only_its_input_asks_though_its_child_works():
    """A plain read ends with input and nothing else."""
    for thread in (blocked_read(), polls(0)):
        parent = process(10, thread, on=1, held=[tty()])
        assert waiters(parent, process(11, SLEEPS, ppid=10)) == [(10, 0)]


def test_a_program_that_watches_its_input_while_a_thread_of_its_own_works_is_no_waiter():
    """Its threads may end its wait by an eventfd; a thread that only keeps time does not."""
    timed = Thread(0, Activity.TIMED)
    elsewhere = blocked_read(5)
    for other, expected in (
        (SLEEPS, []),
        (elsewhere, []),
        (PARKED, [(10, 0)]),
        (timed, [(10, 0)]),
        (polls(4), [(10, 0)]),
    ):
        held = [tty(), eventfd(4), tcp(5)]
        assert waiters(process(10, polls(0, 4), other, on=1, held=held)) == expected


def test_its_own_doings_beside_the_terminal_do_not_matter():
    """An event loop holds an eventfd and both ends of a self-pipe."""
    held = [tty(), eventfd(4), reads(5, 9), writes(6, 9), unix(7, 40, peer=41), unix(8, 41, 40)]
    assert waiters(process(10, polls(0, 4, 5, 7), on=1, held=held)) == [(10, 0)]


# -- somebody outside may act --------------------------------------------------------------------


def test_a_connection_beside_the_terminal_is_suspected_only():
    """Counted, never reported: the network may wake it."""
    asks = process(10, polls(0, 5), on=1, held=[tty(), tcp(5)])
    assert find_waiters(forest(asks)) == Findings((), suspected=1)


@pytest.mark.parametrize(
    "other",
    [inotify(5), reads(5, 99), Descriptor(5, FileKind.OUTSIDE, "/dev/fuse", "/dev/fuse")],
)
def test_anything_else_from_outside_beside_the_terminal_is_silent(other):
    """A file watcher, a foreign pipe, a device: neither reported nor suspected."""
    asks = process(10, polls(0, 5), on=1, held=[tty(), other])
    assert find_waiters(forest(asks)) == Findings()


def test_a_connection_beside_a_file_watcher_is_not_suspected():
    """A development server is not about to ask."""
    asks = process(10, polls(0, 5, 6), on=1, held=[tty(), tcp(5), inotify(6)])
    assert find_waiters(forest(asks)) == Findings()


def test_a_connection_alone_is_not_suspected():
    """A download has no terminal in its set."""
    asks = process(10, blocked_read(5), on=1, held=[tty(), tcp(5)])
    assert find_waiters(forest(asks)) == Findings()


@pytest.mark.parametrize(
    "thread",
    [waits_for_somebody_unknown(), polls(), polls(0, 77)],
    ids=["unreadable", "empty", "a descriptor nobody knows"],
)
def test_an_unknown_wait_set_is_never_guessed(thread):
    """What it waits for cannot be said, so nothing is said."""
    assert find_waiters(forest(process(10, thread, on=1, held=[tty()]))) == Findings()


# -- job control ---------------------------------------------------------------------------------


def test_a_background_reader_stopped_by_the_terminal_is_a_waiter():
    """SIGTTIN stopped it inside its read: it would read if it were let."""
    asks = process(10, blocked_read(), on=1, held=[tty()], foreground=False, state="T")
    assert waiters(asks) == [(10, 0)]


def test_a_stopped_program_in_the_foreground_is_no_waiter():
    """Somebody stopped it; it would not take an answer."""
    for thread in (blocked_read(), polls(0)):
        assert waiters(process(10, thread, on=1, held=[tty()], state="T")) == []


def test_a_stopped_reader_of_a_pipe_is_no_waiter():
    """There is no SIGTTIN on a pipe: somebody stopped it."""
    assert waiters(process(10, blocked_read(), held=[reads(0, 7)], state="T")) == []


def test_a_stopped_program_in_the_background_that_only_polls_is_no_waiter():
    """Polling is never answered with SIGTTIN: somebody stopped it."""
    asks = process(10, polls(0), on=1, held=[tty()], foreground=False, state="T")
    assert waiters(asks) == []


@pytest.mark.parametrize("thread", [polls(0), blocked_read()])
def test_a_background_program_that_is_not_stopped_is_no_waiter(thread):
    """What is typed goes to the foreground."""
    assert waiters(process(10, thread, on=1, held=[tty()], foreground=False)) == []


def test_a_terminal_without_a_foreground_counts_as_the_readers():
    """Nobody else is in front."""
    assert waiters(process(10, blocked_read(), on=1, held=[tty()], foreground=None)) == [(10, 0)]


def test_a_terminal_that_is_not_its_controlling_one_has_no_job_control():
    """It reads whatever comes, shell or not, in front or not."""
    asks = process(10, blocked_read(), on=2, held=[tty(0, 1)], foreground=False, **PROMPTING)
    assert waiters(asks) == [(10, 0)]


def test_a_helper_outside_the_tree_that_reads_its_terminal_is_a_waiter():
    """Pinentry below gpg-agent asks for the gpg of the tree, which waits for the agent."""
    gpg = process(10, blocked_read(3), comm="gpg", on=1, held=[tty(), unix(3, 50)])
    pinentry = process(90, polls(4), comm="pinentry", held=[tty(4, 1)], guest=True)
    (found,) = find_waiters(forest(gpg, pinentry)).waiters
    assert (found.comm, found.fd, found.key.input) == ("pinentry", 4, "pts:1")


def test_a_guest_feeds_nobody_of_the_tree():
    """That it holds the other end of a pipe does not make it a producer of the tree."""
    reader = process(10, polls(0, 5), on=1, held=[tty(), reads(5, 60)])
    guest = process(90, PARKED, held=[writes(1, 60)], guest=True)
    assert find_waiters(forest(reader, guest)) == Findings()


# -- relays --------------------------------------------------------------------------------------


def relay(pid, outer, inner, comm, ppid=1):
    """A program that passes one terminal on to another it made."""
    held = [tty(0, outer), ptmx(3, inner)]
    return process(pid, polls(0, 3), ppid=ppid, comm=comm, on=outer, held=held)


def test_the_inner_reader_of_a_relay_is_named():
    """script(1) and sudo(8) only pass its input on; they are listed."""
    asks = process(11, blocked_read(), ppid=10, comm="passwd", on=2, held=[tty(0, 2)])
    (found,) = find_waiters(forest(relay(10, 1, 2, "script"), asks)).waiters
    assert (found.comm, found.key.input, found.target) == ("passwd", "pts:2", "/dev/pts/2")
    assert found.relays == ("script",)
    assert not found.dead


def test_relays_in_relays_are_listed_from_the_outside():
    """Sudo script passwd: three terminals, one question."""
    asks = process(12, blocked_read(), ppid=11, comm="passwd", on=3, held=[tty(0, 3)])
    outer, inner = relay(10, 1, 2, "sudo"), relay(11, 2, 3, "script", ppid=10)
    found = find_waiters(forest(outer, inner, asks)).waiters
    assert [(w.comm, w.relays) for w in found] == [("passwd", ("sudo", "script"))]


def test_a_relay_of_a_pipe_is_followed_too():
    """The outer input need not be a terminal."""
    script = process(10, polls(0, 3), comm="script", held=[reads(0, 7), ptmx(3, 2)])
    asks = process(11, blocked_read(), ppid=10, on=2, held=[tty(0, 2)])
    (found,) = find_waiters(forest(script, asks, inputs=[STDIN])).waiters
    assert (found.key.pid, found.relays) == (11, ("script",))


@pytest.mark.parametrize("inner", [SLEEPS, PARKED, polls(5)])
def test_a_relay_never_asks_for_itself(inner):
    """Whether its inner program sleeps, waits for its child, or for the network."""
    child = process(11, inner, ppid=10, on=2, held=[tty(0, 2), tcp(5)])
    assert find_waiters(forest(relay(10, 1, 2, "script"), child)) == Findings()


def test_a_relay_with_the_signals_of_a_shell_is_none():
    """As sudo has them: those of ksh93, but it drives a terminal of its own."""
    signals = {"ignored": SIGTTOU, "caught": SIGINT | SIGQUIT | SIGTERM | SIGTSTP | SIGCHLD}
    held = [tty(0, 1), ptmx(3, 2)]
    sudo = process(10, polls(0, 3), comm="sudo", on=1, held=held, **signals)
    asks = process(11, blocked_read(), ppid=10, on=2, held=[tty(0, 2)])
    assert waiters(sudo, asks) == [(11, 0)]
    assert waiters(process(10, polls(0), on=1, held=[tty(0, 1)], **signals)) == []


def test_an_idle_shell_behind_a_relay_is_idle():
    """`script` with a shell at its prompt asks nothing."""
    shell = process(11, blocked_read(), ppid=10, on=2, held=[tty(0, 2)], **PROMPTING)
    assert find_waiters(forest(relay(10, 1, 2, "script"), shell)) == Findings()


def test_a_background_relay_is_no_way_to_the_harness():
    """What is typed does not reach it."""
    script = process(10, polls(0, 3), on=1, foreground=False, held=[tty(0, 1), ptmx(3, 2)])
    asks = process(11, blocked_read(), ppid=10, on=2, held=[tty(0, 2)])
    assert find_waiters(forest(script, asks)).waiters == ()


def multiplexer(inner, *, client=True, passes_terminal=False, **more):
    """A terminal multiplexer: a client, and a server that listens and makes the inner terminal.

    ``passes_terminal``: the client hands its terminal to the server (tmux), else it passes bytes.
    """
    own = [unix(5, 71, 70)] if client else []
    own += [tty(6, 1)] if passes_terminal else []
    server = process(11, polls(3, 4, *(d.fd for d in own)), ppid=10, comm="server",
                     held=[listener(3), ptmx(4, 2), *own])  # fmt: skip
    front = process(10, polls(3) if passes_terminal else polls(0, 3), comm="client", on=1,
                    held=[tty(0, 1), unix(3, 70, 71)])  # fmt: skip
    asks = process(12, inner, ppid=11, comm="rm", on=2, held=[tty(0, 2)], **more)
    if not client:
        front = process(10, PARKED, comm="sh", on=1, held=[tty(0, 1)])
    return find_waiters(forest(front, server, asks))


@pytest.mark.parametrize(
    ("passes_terminal", "relays"), [(True, ("server",)), (False, ("client", "server"))]
)
def test_a_question_within_a_terminal_multiplexer_is_the_inner_readers(passes_terminal, relays):
    """Although its server listens for others: it is the harness whose terminal it shows."""
    found = multiplexer(blocked_read(), passes_terminal=passes_terminal).waiters
    assert [(w.comm, w.relays, w.dead) for w in found] == [("rm", relays, False)]


@pytest.mark.parametrize("passes_terminal", [True, False])
def test_work_within_a_terminal_multiplexer_is_no_question(passes_terminal):
    """Neither its client nor its server asks by itself."""
    assert multiplexer(SLEEPS, passes_terminal=passes_terminal) == Findings()
    idle = multiplexer(blocked_read(), passes_terminal=passes_terminal, **PROMPTING)
    assert idle == Findings()


def test_a_question_within_a_multiplexer_that_nobody_shows_is_not_dead():
    """Somebody may still come to its server; whether is not known."""
    assert multiplexer(blocked_read(), client=False) == Findings()


def test_a_server_that_listens_beside_its_terminal_is_no_waiter():
    """It serves, and its keys are an extra."""
    assert waiters(process(10, polls(0, 3), on=1, held=[tty(), listener(3)])) == []


def test_a_client_of_an_idle_server_of_its_own_is_a_waiter():
    """The server in its tree does nothing unless somebody new comes."""
    client = process(10, polls(0, 3), on=1, held=[tty(), unix(3, 70, 71)])
    server = process(11, polls(3, 4), ppid=1, held=[listener(3), unix(4, 71, 70)])
    (found,) = find_waiters(forest(client, server)).waiters
    assert found.key.pid == 10


# -- dead waits ----------------------------------------------------------------------------------


def driven(driver, **more):
    """expect(1) and a program that asks on the terminal expect made."""
    expect = process(10, driver, comm="expect", held=[reads(0, 7), ptmx(3, 2)])
    asks = process(11, blocked_read(), ppid=10, comm="passwd", on=2, held=[tty(0, 2)], **more)
    return find_waiters(forest(expect, asks, inputs=[STDIN])).waiters


@pytest.mark.parametrize(
    "driver",
    [polls(3), blocked_read(3), polls(3, timeout=0.5), PARKED],
    ids=["polls", "reads", "polls in short steps", "waits for its child"],
)
def test_a_question_to_a_stuck_driver_is_dead(driver):
    """The driver waits for the program and the program for the driver, for ever."""
    (found,) = driven(driver)
    assert (found.comm, found.dead, found.relays) == ("passwd", True, ())


@pytest.mark.parametrize(
    "driver",
    [polls(3, timeout=10), polls(3, timeout=1.0), SLEEPS, polls(3, 5)],
    ids=["time-out to come", "time-out of the quiet second", "works", "unknown"],
)
def test_a_question_to_a_driver_that_may_still_act_is_nothing(driver):
    """Its time-out has not passed, or it does something else."""
    assert driven(driver) == ()


def test_a_relay_within_a_relay_that_nobody_can_reach_is_not_the_dead_one():
    """The question is the innermost reader's."""
    outer = process(10, polls(3), comm="script", held=[ptmx(3, 2)])
    inner = process(11, polls(0, 3), ppid=10, comm="script", on=2, held=[tty(0, 2), ptmx(3, 3)])
    asks = process(12, blocked_read(), ppid=11, comm="rm", on=3, held=[tty(0, 3)])
    found = find_waiters(forest(outer, inner, asks)).waiters
    assert [(w.comm, w.dead) for w in found] == [("rm", True)]


def test_an_idle_shell_under_a_stuck_driver_is_not_dead():
    """A driver that waits for its shell's output lets it idle."""
    assert driven(polls(3), **PROMPTING) == ()


def test_a_reader_of_the_wrong_end_of_a_pipe_is_dead():
    """Nothing ever comes out of the end that is written."""
    asks = process(10, polls(0), held=[writes(0, 7)])
    (found,) = find_waiters(forest(asks, inputs=[STDIN])).waiters
    assert (found.dead, found.fd, found.wiring) == (True, 0, "pipe")


def test_the_wrong_end_of_a_pipe_with_a_time_out_is_not_dead():
    """It will go on by itself."""
    assert waiters(process(10, polls(0, timeout=5), held=[writes(0, 7)])) == []


def test_the_wrong_end_of_a_pipe_beside_a_real_input_is_no_dead_wait():
    """The terminal still can be answered."""
    asks = process(10, polls(0, 1), on=1, held=[tty(), writes(1, 8)])
    (found,) = find_waiters(forest(asks)).waiters
    assert (found.fd, found.dead) == (0, False)


# -- programs that may not be looked into --------------------------------------------------------

SECRET = {"echo": False}


def blind(*others, state="S", in_front=True, **shown):
    """A set-uid program on our own terminal."""
    asks = process(10, UNSEEN, comm="sudo", held=None, on=1, foreground=in_front, state=state)
    return find_waiters(forest(asks, *others, console=console(**shown)))


def test_echo_off_in_line_mode_is_a_question_for_a_secret():
    """All that is known is said, with the grade that says how."""
    assert blind(**SECRET) == Findings(
        (
            Waiter(
                key=WaiterKey(10, START, 10, "pts:1"),
                comm="sudo",
                wiring="tty",
                fd=-1,
                target="/dev/pts/1",
                syscall="unknown",
                grade="terminal",
            ),
        ),
        blind=1,
    )


def test_an_unfinished_line_is_a_question():
    """In any mode."""
    assert len(blind(unterminated=True).waiters) == 1
    assert len(blind(unterminated=True, canonical=False, echo=False).waiters) == 1


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"canonical": False, "echo": False},
        {**SECRET, "foreground": 77},
        {**SECRET, "state": "R"},
        {**SECRET, "state": "T"},
    ],
    ids=["nothing", "raw, line ended", "background", "running", "stopped"],
)
def test_a_terminal_that_shows_no_question_says_nothing(case):
    """It is counted as blind, no more."""
    assert blind(**case) == Findings(blind=1)


def test_a_blind_program_that_runs_a_command_does_not_ask():
    """Sudo that has got its password has a child; a dead child is none."""
    assert blind(process(11, SLEEPS, ppid=10), **SECRET).waiters == ()
    assert len(blind(process(11, state="Z", ppid=10), **SECRET).waiters) == 1


def test_a_command_that_a_set_uid_program_runs_is_not_judged_by_an_unfinished_line():
    """A download below sudo looks just so; with the echo off, it is a question for a secret."""
    below = process(11, UNSEEN, ppid=10, comm="curl", held=None, on=1, group=10)
    assert blind(below, unterminated=True).waiters == ()
    assert [w.comm for w in blind(below, **SECRET).waiters] == ["curl"]


def test_a_pipe_of_our_own_speaks_too():
    """Where nothing is left in it and a line was left unfinished; it has no echo to switch off."""
    asks = process(10, UNSEEN, comm="sudo", held=None)
    pipe = Console(STDIN, "pipe:[7]", True, True, 10, True, wiring="pipe")
    (found,) = find_waiters(forest(asks, console=pipe)).waiters
    assert (found.wiring, found.target, found.grade) == ("pipe", "pipe:[7]", "terminal")
    quiet = replace(pipe, unterminated=False)
    assert find_waiters(forest(asks, console=quiet)).waiters == ()


def test_without_a_terminal_of_our_own_the_blind_stay_blind():
    """`watch` has none: it counts them and says nothing."""
    asks = process(10, UNSEEN, held=None, on=1)
    assert find_waiters(forest(asks)) == Findings(blind=1)


def test_a_reader_that_can_be_seen_is_not_judged_by_the_terminal():
    """The terminal speaks only for those who may not be looked into."""
    asks = process(10, SLEEPS, on=1, held=[tty()])
    assert find_waiters(forest(asks, console=console(**SECRET))) == Findings()


def test_a_blind_process_may_act():
    """Nobody knows what it does, so whoever waits for it is not stuck."""
    cat = process(10, polls(0, 5), on=1, held=[tty(), pidfd(5, 11)])
    assert waiters(cat, process(11, UNSEEN, ppid=10, held=None)) == []


# -- any picture ---------------------------------------------------------------------------------

numbers = st.integers(1, 5)
keys = st.sampled_from(["pts:1", "pts:2", "pipe:[7]", "pipe:[8]", "socket:[7]", "2", "3"])
descriptors = st.builds(
    Descriptor,
    fd=st.just(0),
    kind=st.sampled_from(FileKind),
    key=keys,
    target=st.sampled_from(["/dev/pts/1", "socket:[7]", "pipe:[7]"]),
    readable=st.booleans(),
    writable=st.booleans(),
    peer=st.none() | keys,
)
tables = st.none() | st.dictionaries(st.integers(0, 4), descriptors, max_size=4)
seconds = st.none() | st.sampled_from([0.0, 0.1, 1.0, 30.0])
calls = st.builds(
    Call,
    name=st.sampled_from(["read", "poll"]),
    fds=st.none() | st.lists(st.integers(0, 5), max_size=4).map(tuple),
    timeout=seconds,
    multiplexed=st.booleans(),
)
threads = st.builds(
    Thread, tid=st.integers(1, 9), activity=st.sampled_from(Activity), call=st.none() | calls
)
states = st.sampled_from("SRDTtZX")
signals = st.sampled_from(
    [0, SIGINT, SIGTERM, JOBS, JOBS | SIGQUIT | SIGTERM, SIGQUIT | SIGTERM, (1 << 64) - 1]
)


@st.composite
def forests(draw):
    """Any picture at all, also impossible ones: loops of parents, numbers of nobody."""
    processes = {}
    for pid in draw(st.sets(numbers, min_size=1)):
        table = draw(tables)
        processes[pid] = Process(
            id=ProcessId(pid, START),
            ppid=draw(numbers),
            comm="x",
            group=draw(numbers),
            session=1,
            state=draw(states),
            terminal=draw(st.none() | keys),
            foreground=draw(st.integers(-1, 5)),
            threads=tuple(draw(st.lists(threads, max_size=3, unique_by=lambda t: t.tid))),
            descriptors=None
            if table is None
            else {fd: Descriptor(fd, *_rest(d)) for fd, d in table.items()},
            ignored=draw(signals),
            caught=draw(signals),
            guest=draw(st.booleans()),
        )
    screen = st.builds(
        Console, keys, keys, st.booleans(), st.booleans(), st.integers(1, 5), st.booleans()
    )
    return Forest(
        ProcessId(draw(numbers), START),
        processes,
        draw(st.frozensets(keys)),
        draw(st.frozensets(keys)),
        draw(st.none() | screen),
    )


def _rest(descriptor):
    d = descriptor
    kind = FileKind.EVENT if d.kind is FileKind.PIDFD else d.kind
    kind = FileKind.PIDFD if d.key.isdigit() else kind  # its key is the number of a process
    return kind, d.key, d.target, d.readable, d.writable, d.peer


@given(forests())
@settings(max_examples=200)
def test_only_a_thread_blocked_on_input_is_ever_named(picture):
    """Whatever the picture: nothing is raised, nobody is named twice, nothing is made up."""
    found = find_waiters(picture)
    assert len({w.key for w in found.waiters}) == len(found.waiters)
    assert found.blind == sum(p.descriptors is None for p in picture.processes.values())
    for who in found.waiters:
        process = picture.processes[who.key.pid]
        assert who.key.start == process.id.start
        if who.grade == "terminal":
            assert process.descriptors is None
            continue
        (thread,) = (t for t in process.threads if t.tid == who.key.tid)
        assert thread.activity is Activity.INPUT
        assert who.fd in thread.call.fds
        assert process.descriptors[who.fd].key == who.key.input
        for fd in thread.call.fds:
            assert process.descriptors[fd].kind is not FileKind.OUTSIDE


@given(forests())
def test_the_same_picture_gives_the_same_waiters(picture):
    """There is no order of dictionaries in the answer."""
    turned = dict(reversed(picture.processes.items()))
    other = Forest(picture.root, turned, picture.inputs, picture.fed, picture.console)
    first, second = find_waiters(picture), find_waiters(other)
    assert {w.key: w.dead for w in first.waiters} == {w.key: w.dead for w in second.waiters}
    assert first.suspected == second.suspected
