"""How fast devices work on samples of the mean size, by their kind."""

from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.packing import fewest_worth
from digen_core.control.schedule import Workload

UNKNOWN = DeviceCosts(step=Linear(per_item=1.0), pack=Linear(per_item=1.0))


class Rates:
    """What follows from the costs for one workload; each answer is found once."""

    def __init__(self, costs: Costs, workload: Workload) -> None:
        self._costs = costs
        self._workload = workload
        self._generation: dict[str, float] = {}
        self._training: dict[str, float] = {}
        self._smallest: dict[tuple[str, int], int] = {}
        self._smallest_batch: dict[str, int] = {}

    def costs_of(self, kind: str) -> DeviceCosts:
        """Return what work costs; equal guesses where the kind is unknown."""
        kinds = self._costs.kinds
        return kinds.get(kind) or next(iter(kinds.values()), UNKNOWN)

    def generation(self, kind: str) -> float:
        """Return of how many samples a device does a denoising step per second, in batches."""
        rate = self._generation.get(kind)
        if rate is None:
            size = self._workload.fragment_size * self._workload.fragments_per_batch
            rate = self._generation[kind] = size / max(self.costs_of(kind).step(size), 1e-12)
        return rate

    def training(self, kind: str) -> float:
        """Return how many pairs per second a device trains in full packs."""
        rate = self._training.get(kind)
        if rate is None:
            size = self._workload.pack_size
            rate = self._training[kind] = size / max(self.costs_of(kind).pack(size), 1e-12)
        return rate

    def smallest_pack(self, kind: str, most: int) -> int:
        """Return the fewest pairs that are worth a pack, of ``most`` at most, while more come."""
        size = self._smallest.get((kind, most))
        if size is None:
            size = self._smallest[kind, most] = fewest_worth(self.costs_of(kind).pack, most)
        return size

    def smallest_batch(self, kind: str) -> int:
        """Return the fewest samples that are worth a denoising step, of a full batch at most."""
        size = self._smallest_batch.get(kind)
        if size is None:
            most = self._workload.fragment_size * self._workload.fragments_per_batch
            size = self._smallest_batch[kind] = fewest_worth(self.costs_of(kind).step, most)
        return size
