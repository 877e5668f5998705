"""The pool of reward servers, by hand."""

from digen_core.control.protocol import Fragment
from digen_core.sim.clock import Clock, Jitter
from digen_core.sim.reward_servers import RewardServers


def fragment(group, index, samples=2, iteration=0):
    return Fragment(iteration, group, index, 0, samples)


def scored(asked, *, seconds=2.0, servers=2, dropped=()):
    """Ask for (time, fragment); return (fragment, started, ended), in the order of their ends."""
    clock, done = Clock(), []
    pool = RewardServers(clock, Jitter(0.0, 0), seconds=seconds, num_servers=servers)

    def note(request):
        done.append((request.fragment, request.started, clock.now))

    requests = {}
    for time, part in asked:
        clock.at(time, lambda p=part: requests.__setitem__(p, pool.score(p, note)))
    for time, part in dropped:
        clock.at(time, lambda p=part: setattr(requests[p], "dropped", True))
    while clock.advance():
        pass
    return done


def test_groups_come_before_later_groups_and_iterations():
    late, first, third, next_one = (
        fragment(1, 0),
        fragment(0, 0),
        fragment(0, 1),
        fragment(0, 0, 2, 1),
    )
    asked = [(0.0, fragment(5, 0)), (1.0, next_one), (1.0, late), (1.0, third), (1.1, first)]
    assert scored(asked) == [
        (fragment(5, 0), 0.0, 2.0),
        (third, 2.0, 4.0),
        (first, 4.0, 6.0),
        (late, 6.0, 8.0),
        (next_one, 8.0, 10.0),
    ]


def test_samples_of_a_fragment_are_spread_over_the_servers():
    assert scored([(0.0, fragment(0, 0, 5))]) == [(fragment(0, 0, 5), 0.0, 6.0)]


def test_rewards_that_cost_nothing_are_there_at_once():
    assert scored([(3.0, fragment(0, 0, 5))], seconds=0.0) == [(fragment(0, 0, 5), 3.0, 3.0)]


def test_what_is_dropped_takes_no_more_time():
    lost, kept = fragment(0, 0, 4), fragment(1, 0)
    asked = [(0.0, lost), (0.5, kept)]
    assert scored(asked, dropped=[(1.0, lost)]) == [(kept, 2.0, 4.0)]
