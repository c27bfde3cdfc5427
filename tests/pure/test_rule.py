"""The rule: candidate, confirmed, resolved."""

import pytest
from builders import NS, PERIOD, START, sample, waiter
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.constants import LAPSE_NS, MAX_CPU_TICKS, PATIENCE_NS, QUIET_NS
from receipt_trace.observation import Ending, ProcessId, Sample
from receipt_trace.rule import Confirmed, How, Resolved, Rule

ME = ProcessId(10, START)


def drive(rule, samples):
    """All transitions of a row of samples."""
    return [t for s in samples for t in rule.step(s)]


def confirmed_rule(who=None):
    """A rule that has just confirmed a wait, at 1.0 s."""
    rule = Rule()
    drive(rule, [sample(n, who or waiter()) for n in range(11)])
    assert len(rule.active) == 1
    return rule


# -- confirmation ------------------------------------------------------------------------------


def test_a_wait_is_confirmed_after_a_whole_quiet_second():
    """Not at 0.9 s, at 1.0 s, with the time it began and the CPU time spent."""
    rule = Rule()
    assert drive(rule, [sample(n, waiter()) for n in range(10)]) == []
    assert rule.step(sample(10, waiter())) == [Confirmed(NS, waiter(), 0, 0)]


def test_a_moment_less_than_the_quiet_second_is_not_enough():
    """One nanosecond before the second is over nothing is said."""
    rule = Rule()
    rule.step(sample(0, waiter()))
    assert rule.step(Sample(time=QUIET_NS - 1, waiters=(waiter(),))) == []
    assert rule.step(Sample(time=QUIET_NS, waiters=(waiter(),))) == [
        Confirmed(QUIET_NS, waiter(), 0, 0)
    ]


def test_late_samples_do_not_hinder_confirmation():
    """A busy host gives two samples a second; the second is still enough."""
    rule = Rule()
    assert drive(rule, [sample(0, waiter()), sample(10, waiter())]) == [
        Confirmed(NS, waiter(), 0, 0)
    ]


def test_output_breaks_a_candidate():
    """The second begins anew when something was written."""
    rule = Rule()
    found = drive(rule, [sample(n, waiter(), output=int(n >= 5)) for n in range(16)])
    assert found == [Confirmed(15 * PERIOD, waiter(), 5 * PERIOD, 0)]


def test_five_ticks_of_cpu_time_are_allowed():
    """A program that redraws a cursor still waits; the receipt tells what was spent."""
    rule = Rule()
    found = drive(rule, [sample(n, waiter(), cpu_ticks=40 + n // 2) for n in range(11)])
    assert found == [Confirmed(NS, waiter(), 0, MAX_CPU_TICKS)]


def test_a_sixth_tick_breaks_a_candidate():
    """More than 50 ms of CPU time within the second is work."""
    rule = Rule()
    ticks = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, *[6] * 10]
    found = drive(rule, [sample(n, waiter(), cpu_ticks=t) for n, t in enumerate(ticks)])
    assert found == [Confirmed(20 * PERIOD, waiter(), 10 * PERIOD, 0)]


def test_consumed_input_breaks_a_candidate():
    """A reader that gets its input is not waiting."""
    rule = Rule()
    found = drive(rule, [sample(n, waiter(consumed=int(n >= 4))) for n in range(15)])
    assert found == [Confirmed(14 * PERIOD, waiter(consumed=1), 4 * PERIOD, 0)]


def test_leaving_the_call_breaks_a_candidate():
    """One look at which the thread did something else, and the second begins anew."""
    rule = Rule()
    looks = [sample(n, *([] if n == 5 else [waiter()])) for n in range(17)]
    assert drive(rule, looks) == [Confirmed(16 * PERIOD, waiter(), 6 * PERIOD, 0)]


def test_a_thread_seen_running_for_a_moment_does_not_break():
    """A loop that re-enters its call with a time-out is one wait."""
    rule = Rule()
    looks = [
        sample(n, running=[waiter()]) if n in (3, 4) else sample(n, waiter()) for n in range(11)
    ]
    assert drive(rule, looks) == [Confirmed(NS, waiter(), 0, 0)]


def test_a_thread_that_runs_longer_breaks():
    """Three looks on a processor are no longer a moment."""
    rule = Rule()
    looks = [
        sample(n, running=[waiter()]) if n in (3, 4, 5) else sample(n, waiter()) for n in range(17)
    ]
    assert drive(rule, looks) == [Confirmed(16 * PERIOD, waiter(), 6 * PERIOD, 0)]


def test_the_lapse_is_counted_from_the_last_time_it_was_seen_waiting():
    """Exactly the lapse is allowed, a nanosecond more is not."""
    for late, expected in ((LAPSE_NS, 0), (LAPSE_NS + 1, NS // 2)):
        rule = Rule()
        rule.step(sample(0, waiter()))
        rule.step(Sample(time=late, running=frozenset({waiter().key[:3]})))
        rule.step(sample(5, waiter()))
        (found,) = rule.step(sample(15, waiter()))
        assert found.since == expected


def test_another_thread_running_is_no_excuse():
    """Only the waiting thread itself may be on its way back into the call."""
    rule = Rule()
    other = waiter(tid=11)
    looks = [sample(n, running=[other]) if n == 3 else sample(n, waiter()) for n in range(11)]
    assert drive(rule, looks) == []


def test_another_input_of_the_same_thread_is_another_candidate():
    """A thread that turns from one descriptor to another has not waited for either."""
    rule = Rule()
    looks = [sample(n, waiter(key="pts:1" if n < 5 else "pts:2")) for n in range(11)]
    assert drive(rule, looks) == []


def test_one_input_has_one_receipt():
    """Two threads that read the same terminal ask one question."""
    rule = Rule()
    both = waiter(), waiter(tid=11)
    found = drive(rule, [sample(n, *both) for n in range(30)])
    assert found == [Confirmed(NS, waiter(), 0, 0)]


def test_two_inputs_have_two_receipts():
    """Two programs that ask on two terminals are told apart."""
    rule = Rule()
    both = waiter(), waiter(pid=20, key="pts:2")
    found = drive(rule, [sample(n, *both) for n in range(30)])
    assert [t.waiter.key.input for t in found] == ["pts:1", "pts:2"]


def test_a_wait_goes_on_without_a_second_receipt():
    """However long it lasts, and whatever echo or clock appears on the screen."""
    rule = confirmed_rule()
    looks = [sample(n, waiter(), output=n, cpu_ticks=n * 10) for n in range(11, 60)]
    assert drive(rule, looks) == []
    assert rule.active == (waiter(),)


def test_a_confirmed_wait_outlives_a_moment_on_a_processor():
    """It is not resolved by being caught between two calls."""
    rule = confirmed_rule()
    looks = [
        sample(11, running=[waiter()]),
        sample(12, running=[waiter()]),
        sample(13, waiter()),
    ]
    assert drive(rule, looks) == []
    assert rule.active == (waiter(),)


def test_a_new_question_after_an_answer_is_a_new_wait():
    """It is confirmed after a second of its own."""
    rule = confirmed_rule(waiter(consumed=0))
    found = drive(rule, [sample(n, waiter(consumed=1), output=1) for n in range(11, 22)])
    assert found == [
        Resolved(11 * PERIOD, waiter(consumed=0), 0, How.ANSWERED),
        Confirmed(21 * PERIOD, waiter(consumed=1), 11 * PERIOD, 0),
    ]


def test_the_same_question_of_another_program_is_a_new_wait():
    """The first is resolved before the second is confirmed, both told of one input."""
    rule = confirmed_rule()
    other = waiter(pid=20)
    looks = [sample(n, other, ended={ME: Ending(0)} if n == 11 else {}) for n in range(11, 22)]
    assert drive(rule, looks) == [
        Resolved(11 * PERIOD, waiter(), 0, How.EXITED, 0),
        Confirmed(21 * PERIOD, other, 11 * PERIOD, 0),
    ]


# -- calls with a time-out of their own ------------------------------------------------------------


def first_confirmation(**call):
    """When a wait in such a call is confirmed, in tenths of a second."""
    rule = Rule()
    for n in range(60):
        for found in rule.step(sample(n, waiter(**call))):
            return found.time // PERIOD
    return None


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        (None, 10), (0.0, 10), (0.1, 10), (0.9, 10), (1.0, 12), (2.0, 22), (3.0, 32), (3.1, 10),
        (4.0, 10), (36000.0, 10),
    ],
)  # fmt: skip
def test_a_short_time_out_is_let_pass_first(timeout, expected):
    """A monitor that redraws every two or three seconds waits for a key meanwhile."""
    assert first_confirmation(timeout=timeout) == expected


def test_a_program_that_prints_after_each_time_out_is_never_confirmed():
    """That is what a monitor does: top, every three seconds."""
    rule = Rule()
    for timeout in (1.0, 1.5, 2.0, PATIENCE_NS / NS):
        every = round(timeout * 10)
        looks = [sample(n, waiter(timeout=timeout), output=n // every) for n in range(200)]
        assert drive(rule, looks) == []
        rule.stop(0)


def test_the_longest_time_out_of_a_wait_counts():
    """A program that counts down what is left of its time is one that counts it again."""
    rule = Rule()
    left = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1, 1.0, *[0.5] * 20]
    looks = [sample(n, waiter(timeout=t)) for n, t in enumerate(left)]
    (found,) = drive(rule, looks)
    assert (found.time, found.since) == (22 * PERIOD, 0)


def test_it_is_due_when_its_time_out_has_passed():
    """Not before."""
    rule = Rule()
    rule.step(sample(0, waiter(timeout=2.0)))
    assert rule.due == 22 * PERIOD


# -- resolution --------------------------------------------------------------------------------

CASES = {
    "it took input and waits again": (
        waiter(consumed=0), sample(11, waiter(consumed=1)), How.ANSWERED, None),
    "it took input and left": (
        waiter(), sample(11, answered=["pts:1"]), How.ANSWERED, None),
    "it left a call without a time-out and lives": (
        waiter(), sample(11), How.ANSWERED, None),
    "it took input and ended": (
        waiter(), sample(11, answered=["pts:1"], ended={ME: Ending(256)}), How.ANSWERED, 256),
    "its input was closed": (
        waiter(), sample(11, closed=["pts:1"]), How.EOF, None),
    "its input was closed and it ended": (
        waiter(), sample(11, closed=["pts:1"], ended={ME: Ending(256)}), How.EOF, 256),
    "its time-out passed": (
        waiter(timeout=5.0), sample(11), How.EXPIRED, None),
    "somebody else's input was answered when its time-out passed": (
        waiter(timeout=5.0), sample(11, answered=["pts:2"]), How.EXPIRED, None),
    "a signal killed it": (
        waiter(), sample(11, ended={ME: Ending(9)}), How.KILLED, 9),
    "a signal killed it and closed its input": (
        waiter(), sample(11, closed=["pts:1"], ended={ME: Ending(15)}), How.KILLED, 15),
    "it exited by itself": (
        waiter(), sample(11, ended={ME: Ending(512)}), How.EXITED, 512),
    "it ended, nobody knows how": (
        waiter(), sample(11, ended={ME: Ending()}), How.EXITED, None),
    "its whole tree is gone": (
        waiter(), sample(11, alive=False), How.EXITED, None),
    "another process of the tree was killed": (
        waiter(), sample(11, ended={ProcessId(20, START): Ending(9)}), How.ANSWERED, None),
    "a process with its number and another start was killed": (
        waiter(), sample(11, ended={ProcessId(10, 1): Ending(9)}), How.ANSWERED, None),
}  # fmt: skip


@pytest.mark.parametrize(("who", "look", "how", "status"), CASES.values(), ids=CASES)
def test_a_wait_is_resolved_by_what_became_of_it(who, look, how, status):
    """Each end of a wait has its word, and the status of the process where it is known."""
    rule = confirmed_rule(who)
    assert rule.step(look) == [Resolved(11 * PERIOD, who, 0, how, status)]
    assert rule.active == ()


def test_a_thread_that_runs_on_has_been_answered():
    """Being on a processor for longer than the lapse is going on."""
    rule = confirmed_rule()
    found = drive(rule, [sample(n, running=[waiter()]) for n in range(11, 25)])
    assert found == [Resolved(22 * PERIOD, waiter(), 0, How.ANSWERED)]


def test_a_loop_that_waits_for_its_turn_on_a_busy_host_still_asks():
    """Half a second long it is only ever seen between two calls."""
    rule = confirmed_rule()
    assert drive(rule, [sample(n, running=[waiter()]) for n in range(11, 16)]) == []
    assert drive(rule, [sample(n, waiter()) for n in range(16, 30)]) == []
    assert rule.active == (waiter(),)


def test_one_look_after_a_long_time_decides_nothing():
    """A tracer that got no processor for two seconds, then sees the loop between two calls."""
    rule = confirmed_rule()
    looks = [sample(31, running=[waiter()]), sample(32, waiter()), sample(60, running=[waiter()])]
    assert drive(rule, looks) == []
    assert drive(rule, [sample(71, running=[waiter()])]) == [
        Resolved(71 * PERIOD, waiter(), 0, How.ANSWERED)
    ]


# -- a source that knows when a tree went still --------------------------------------------


def still(at, since, *waiters, **more):
    """A sample at ``at`` tenths of a second, of a tree in which nobody has run since ``since``."""
    return sample(at, *waiters, still=round(since * PERIOD), **more)


def test_the_quiet_time_begins_when_the_tree_went_still():
    """However late it was looked at."""
    found = drive(Rule(), [still(n, 1, waiter()) for n in (4, 8, 11)])
    assert found == [Confirmed(11 * PERIOD, waiter(), 1 * PERIOD, 0)]


def test_a_wait_from_before_anybody_looked_needs_two_looks():
    """One could have seen what is not there."""
    rule = Rule()
    assert drive(rule, [still(100, 1, waiter())]) == []
    assert len(drive(rule, [still(101, 1, waiter())])) == 1


def test_output_of_somebody_else_begins_the_quiet_time_anew():
    """The tree has been still all the while, and its terminal has not."""
    rule = Rule()
    drive(rule, [still(n, 1, waiter()) for n in (4, 8)])
    drive(rule, [still(9, 1, waiter(), output=5)])
    assert drive(rule, [still(n, 1, waiter(), output=5) for n in (11, 15, 18)]) == []
    assert len(drive(rule, [still(19, 1, waiter(), output=5)])) == 1


def test_output_before_the_tree_went_still_again_does_not():
    """It printed and blocked between two looks."""
    rule = Rule()
    drive(rule, [still(n, 1, waiter()) for n in (4, 8)])
    drive(rule, [still(12, 9, waiter(consumed=1), output=5)])
    assert len(drive(rule, [still(19, 9, waiter(consumed=1), output=5)])) == 1


def test_what_may_change_at_any_moment_is_restless():
    """A candidate, and a loop; not a wait that stands, nor nobody."""
    rule = Rule()
    assert not rule.restless
    drive(rule, [sample(0, waiter())])
    assert rule.restless
    drive(rule, [sample(n, waiter()) for n in range(1, 12)])
    assert not rule.restless
    loop = confirmed_rule(waiter(timeout=0.1))
    assert loop.restless


@pytest.mark.parametrize("how", [How.LOST, How.INTERRUPTED])
def test_stopping_ends_every_wait_once(how):
    """Whoever stops says why; a second time there is nothing left to end."""
    rule = Rule()
    both = waiter(), waiter(pid=20, key="pts:2")
    drive(rule, [sample(n, *both) for n in range(11)])
    assert rule.stop(2 * NS, how) == [Resolved(2 * NS, w, 0, how) for w in both]
    assert rule.stop(3 * NS, how) == []
    assert rule.due is None


def test_stopping_says_lost_unless_told():
    """We stopped looking: nothing is claimed about the program."""
    assert confirmed_rule().stop(2 * NS) == [Resolved(2 * NS, waiter(), 0, How.LOST)]


def test_stopping_forgets_candidates():
    """What was not confirmed needs no end, and counts from the beginning afterwards."""
    rule = Rule()
    drive(rule, [sample(n, waiter()) for n in range(9)])
    assert rule.stop(NS) == []
    assert drive(rule, [sample(n, waiter()) for n in range(11, 21)]) == []


# -- when to look again ------------------------------------------------------------------------


def test_nothing_is_due_without_a_candidate():
    """An empty rule wants no look at any time."""
    rule = Rule()
    assert rule.due is None
    rule.step(sample(0))
    assert rule.due is None


def test_the_earliest_candidate_is_due_first():
    """A second after it was first seen."""
    rule = Rule()
    early, late = waiter(), waiter(pid=20, key="pts:2")
    rule.step(sample(0, early))
    rule.step(sample(3, early, late))
    assert rule.due == NS
    rule.step(sample(4, late))
    assert rule.due == 13 * PERIOD


def test_a_confirmed_wait_is_not_due_again():
    """Nor is another thread that waits for the same input."""
    rule = Rule()
    drive(rule, [sample(n, waiter(), waiter(tid=11)) for n in range(11)])
    assert rule.due is None


# -- any row of samples --------------------------------------------------------------------------

WAITERS = (waiter(), waiter(tid=11), waiter(pid=20, key="pts:2"))
TIMEOUTS = st.sampled_from([None, None, None, 0.1, 1.5, 30.0])


@st.composite
def traces(draw):
    """Rows of samples as a source could give them: times and marks only grow."""
    moment = output = ticks = 0
    consumed = [0] * len(WAITERS)
    timeouts = [draw(TIMEOUTS) for _ in WAITERS]
    samples = []
    for _ in range(draw(st.integers(5, 30))):
        moment += draw(st.sampled_from([1, 50, 100, 100, 100, 100, 240, 260, 500])) * 1_000_000
        output += draw(st.sampled_from([0] * 12 + [1]))
        ticks += draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 3, 7]))
        seen, running = [], set()
        for number, who in enumerate(WAITERS):
            state = draw(st.sampled_from("wwwwwwwwrca"))
            consumed[number] += state == "c"
            if state in "wc":
                key = who.key
                more = {"consumed": consumed[number], "timeout": timeouts[number]}
                seen.append(waiter(key.pid, key.tid, key.input, **more))
            elif state == "r":
                running.add(who.key[:3])
        samples.append(
            Sample(
                time=moment,
                output=output,
                cpu_ticks=ticks,
                waiters=tuple(seen),
                running=frozenset(running),
                ended=draw(st.sampled_from([{}, {}, {ME: Ending(9)}, {ME: Ending()}])),
                answered=frozenset(draw(st.sampled_from([(), (), ("pts:1",)]))),
                closed=frozenset(draw(st.sampled_from([(), (), ("pts:2",)]))),
                alive=draw(st.sampled_from([True, True, True, False])),
            )
        )
    return samples


def stayed_quiet(samples, found):
    """Whether the samples themselves prove what a Confirmed claims; knows nothing of the rule."""
    key = found.waiter.key
    window = [s for s in samples if found.since <= s.time <= found.time]
    looks = [({w.key: w for w in s.waiters}.get(key), s) for s in window]
    seen = found.since
    for who, s in looks:
        if who is None and (key[:3] not in s.running or s.time - seen > LAPSE_NS):
            return False
        seen = s.time if who is not None else seen
    first, last = window[0], window[-1]
    return (
        looks[0][0] is not None
        and looks[-1][0] is not None
        and first.output == last.output
        and last.cpu_ticks - first.cpu_ticks <= MAX_CPU_TICKS
        and len({w.consumed for w, _ in looks if w is not None}) == 1
    )


@given(traces())
def test_nothing_is_confirmed_that_the_samples_do_not_prove(samples):
    """Every confirmation has a whole quiet second of the same thread on the same input."""
    for found in drive(Rule(), samples):
        if isinstance(found, Confirmed):
            assert found.time - found.since >= QUIET_NS
            assert stayed_quiet(samples, found)


@given(traces())
def test_every_input_has_one_wait_at_a_time_and_every_wait_an_end(samples):
    """A receipt is always followed by its own resolution before the next one of that input."""
    rule = Rule()
    found = drive(rule, samples) + rule.stop(samples[-1].time)
    still_open = {}
    for transition in found:
        name = transition.waiter.key.input
        if isinstance(transition, Confirmed):
            assert name not in still_open
            still_open[name] = transition
        else:
            begun = still_open.pop(name)
            assert (transition.waiter.key, transition.since) == (begun.waiter.key, begun.since)
            assert transition.time >= begun.time
    assert still_open == {}
    assert rule.active == ()


@given(traces())
def test_the_same_trace_gives_the_same_transitions(samples):
    """The rule has no clock, no order of its own and no luck."""
    assert drive(Rule(), samples) == drive(Rule(), samples)


@given(traces())
def test_nothing_is_confirmed_before_it_is_due(samples):
    """Unless the end of another wait made room for a second reader of the same input."""
    rule = Rule()
    for look in samples:
        due, taken = rule.due, {w.key.input for w in rule.active}
        for found in rule.step(look):
            if isinstance(found, Confirmed) and found.waiter.key.input not in taken:
                assert due is not None
                assert due <= look.time


steady = st.lists(st.integers(1, NS), min_size=1, max_size=60)


@given(steady)
def test_a_program_that_prints_all_the_time_is_never_confirmed(pauses):
    """However far the looks are apart."""
    moment, samples = 0, []
    for number, pause in enumerate(pauses):
        moment += pause
        samples.append(Sample(time=moment, output=number, waiters=(waiter(),)))
    assert drive(Rule(), samples) == []


@given(steady)
def test_a_program_that_takes_input_all_the_time_is_never_confirmed(pauses):
    """It is fed."""
    moment, samples = 0, []
    for number, pause in enumerate(pauses):
        moment += pause
        samples.append(Sample(time=moment, waiters=(waiter(consumed=number),)))
    assert drive(Rule(), samples) == []


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_a_program_that_works_all_the_time_is_never_confirmed(ticks):
    """Ten looks a second and at least a tick between two: more than five in any second."""
    spent, samples = 0, []
    for number, more in enumerate(ticks):
        spent += more
        samples.append(sample(number, waiter(), cpu_ticks=spent))
    assert drive(Rule(), samples) == []
