"""The queue of fragments against a list that is searched from its begin."""

from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from digen_core.control.generation import GenerationQueue
from digen_core.control.protocol import Fragment

NUM_STEPS = 4


def fragment(group: int, index: int) -> Fragment:
    steps = NUM_STEPS + group % 3
    return Fragment(0, group, index, first_sample=index, num_samples=1, num_steps=steps)


class PlainQueue:
    """The same, without anything kept up to date."""

    def __init__(self, order):
        self.places = {group: place for place, group in enumerate(order)}
        self.versions, self.items = {}, []

    def add(self, part, next_step=0):
        self.items.append((self.places[part.group], part, next_step))

    def succeed(self, old, new):
        self.places[new], self.versions[new] = self.places[old], self.versions[old]

    def restart(self, part):
        self.items = [item for item in self.items if item[1] != part]
        self.add(part)

    def take(self, held, newest):
        for item in sorted(self.items):
            _, part, next_step = item
            version = self.versions.get(part.group, newest)
            if version in held:
                self.items.remove(item)
                self.versions.setdefault(part.group, version)
                return part, next_step, version
        return None


def succeed_one(queue, plain, succeeded: set[int], random: Random, size: int):
    """Put, now and then, a new group in the place of one that has begun."""
    begun = sorted(queue.versions.keys() - succeeded)
    if not begun or random.random() > 0.1:
        return
    old = random.choice(begun)
    new = old + 100
    succeeded |= {old, new}
    for one in (queue, plain):
        one.succeed(old, new)
        for index in range(size):
            one.add(fragment(new, index))


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(1, 3), st.randoms(use_true_random=False))
def test_what_is_taken(num_groups: int, size: int, random: Random):
    order = random.sample(range(num_groups), num_groups)
    queue, plain, out = GenerationQueue(tuple(order)), PlainQueue(order), {}
    for group in range(num_groups):
        for index in range(size):
            queue.add(fragment(group, index))
            plain.add(fragment(group, index))
    succeeded: set[int] = set()
    for _ in range(40):
        succeed_one(queue, plain, succeeded, random, size)
        held = set(random.sample(range(3), random.randint(0, 2)))
        newest = random.choice([None, max(held, default=-1)])
        waiting = [part for _, part, _ in plain.items]
        turn = random.random()
        if turn < 0.5:
            assert queue.offers(held, 2) == any(
                plain.versions.get(part.group, 2) in held for part in waiting
            )
            taken = queue.take(held, newest, is_stale=newest == 0)
            assert taken == plain.take(held, newest)
            if taken is not None:
                out[taken[0]] = taken[1]
        elif turn < 0.8 and out:
            part, done = out.popitem()
            next_step = random.randint(done, NUM_STEPS - 1)
            queue.add(part, next_step)
            plain.add(part, next_step)
        elif waiting:
            queue.restart(waiting[0])
            plain.restart(waiting[0])
        queue.validate()
        assert len(queue) == len(plain.items)
        assert all(part in queue for _, part, _ in plain.items)
        assert not any(part in queue for part in out)
        left = sum((part.num_steps - done) * part.load for _, part, done in plain.items)
        assert queue.load == left
