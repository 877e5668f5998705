"""Links between sites: how busy transfers keep them, and what that says of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from digen_core.records import Crossing


def busy_periods(crossings: Iterable[Crossing]) -> Iterator[Crossing]:
    """Yield the transfers of each link, those that overlap in time as one.

    What is under way at the same time shares a link: one alone seems slower than the link is.
    """
    open_ = dict[frozenset[str], Crossing]()
    for own in sorted(crossings, key=lambda own: own.started):
        before = open_.get(own.sites)
        if before is None or own.started >= before.ended:
            if before is not None:
                yield before
            open_[own.sites] = own
        else:
            ended = max(before.ended, own.ended)
            num_bytes = before.num_bytes + own.num_bytes
            open_[own.sites] = Crossing(own.sites, num_bytes, before.started, ended)
    yield from open_.values()


def link_metrics(crossings: Iterable[Crossing]) -> dict[str, float]:
    """Return what crossed each link in GB, and how fast while anything did, in Gb/s."""
    sums = defaultdict[frozenset[str], list[float]](lambda: [0.0, 0.0])
    for own in busy_periods(crossings):
        sums[own.sites][0] += own.num_bytes
        sums[own.sites][1] += own.ended - own.started
    found = {}
    for sites, (num_bytes, seconds) in sums.items():
        name = "links/" + "-".join(sorted(sites))
        found[f"{name}/gb"] = num_bytes / 1e9
        if seconds:
            found[f"{name}/gbit_per_second"] = 8e-9 * num_bytes / seconds
    return found
