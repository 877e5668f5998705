"""When devices are free to train, and when they finish pairs together: water filling."""

TICK = 1e-6  # seconds; devices that are free in the same tick are free at their mean
DIGIT = 4  # bits of a tick's number that lead from a node to one of its children
NUM_LEVELS = 10  # so 2**40 ticks: 12 days
LAST_TICK = (1 << DIGIT * NUM_LEVELS) - 1


class Sums:
    """Of the devices below a node, to which all those belong that are free in its time."""

    __slots__ = ("num", "rate", "weight")

    def __init__(self) -> None:
        self.num = 0
        self.rate = 0.0  # pairs per second
        self.weight = 0.0  # rate times when they are free


class FreeTimes:
    """A tree over time with the sums of the devices that are free in each part of it.

    Devices that are free at u_i and train r_i pairs per second have trained F(t) = sum of
    r_i max(0, t - u_i) pairs at t. The tree finds F(t), and the t of an F, in as many steps as the
    number of a tick has digits: however many devices there are.
    """

    def __init__(self) -> None:
        #: By level, the one of the most time first: its nodes, and how many bits of a tick's number
        #: are below a node's.
        self._levels: list[tuple[dict[int, Sums], int]] = [
            ({}, DIGIT * (NUM_LEVELS - 1 - place)) for place in range(NUM_LEVELS)
        ]

    def add(self, free_at: float, rate: float) -> None:
        """Put a device in."""
        tick, weight = _tick_of(free_at), rate * free_at
        for level, below in self._levels:
            key = tick >> below
            sums = level.get(key)
            if sums is None:
                sums = level[key] = Sums()
            sums.num += 1
            sums.rate += rate
            sums.weight += weight

    def remove(self, free_at: float, rate: float) -> None:
        """Take a device out that was put in so."""
        tick, weight = _tick_of(free_at), rate * free_at
        for level, below in self._levels:
            key = tick >> below
            sums = level[key]
            sums.num -= 1
            sums.rate -= rate
            sums.weight -= weight
            if not sums.num:
                del level[key]

    def __len__(self) -> int:
        return sum(sums.num for sums in self._levels[0][0].values())

    def trained_by(self, time: float) -> float:
        """Return F: how many pairs the devices train until a time."""
        rate = weight = 0.0
        tick, num_above = _tick_of(time), -1
        for level, below in self._levels:
            key = tick >> below
            own = level.get(key)
            if own is None or own.num != num_above:  # it is not the only child
                for child in range(key >> DIGIT << DIGIT, key):
                    if sums := level.get(child):
                        rate += sums.rate
                        weight += sums.weight
            if own is None:  # nor is anything below it
                return rate * time - weight
            num_above = own.num
        assert own is not None
        return rate * time - weight + max(0.0, own.rate * time - own.weight)

    def trained_at(self, pairs: float) -> float:
        """Return the first time by which the devices, of which there are some, train F pairs."""
        rate = weight = 0.0
        key, seconds = 0, TICK * (1 << DIGIT * NUM_LEVELS)
        for level, _ in self._levels:
            first, seconds = key << DIGIT, seconds / (1 << DIGIT)
            for key in range(first, first + (1 << DIGIT)):
                sums = level.get(key)
                if sums is None:
                    continue
                end = (key + 1) * seconds
                if (rate + sums.rate) * end - weight - sums.weight >= pairs:
                    break  # in this part of time
                rate += sums.rate
                weight += sums.weight
            else:
                return (pairs + weight) / rate
        last = self._levels[-1][0][key]
        if rate and pairs + weight <= rate * last.weight / last.rate:
            return (pairs + weight) / rate  # before the last of them is free
        return (pairs + weight + last.weight) / (rate + last.rate)


def _tick_of(time: float) -> int:
    return min(int(time / TICK), LAST_TICK)
