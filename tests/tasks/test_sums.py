"""Sums of gradients that devices pull from each other: of another site's devices as one."""

from collections.abc import Iterator

import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.training.gradient import PackMetrics
from digen_core.training.gradient_sum import GradientSum, PackGradient, SharedSum
from support.in_process import call
from support.pull_source import Source
from support.tiny_policies import TINY
from tasks.receipts import NOT_SHARED, Reduced
from tasks.train import empty_sum, reduce, share_sum
from tasks.worker import engine as engine_module
from tasks.worker import pulling
from tasks.worker.engine import build_engine
from tasks.worker.shelf import AVERAGE


class Trainer:
    """A device with an engine of its own, which has summed one pack."""

    def __init__(self, config: RunConfig, patch: pytest.MonkeyPatch, pack: int, **values: float):
        self._patch = patch
        self.engine = build_engine("run", config, f"trainer-{pack}", frozenset({"trainer"}))
        self.source = Source({}, 1)
        self.source.shelves["member-0"] = self.engine.shelf
        self.total = GradientSum()
        gradient = {name: torch.tensor([value, 2 * value]) for name, value in values.items()}
        self.total.add(pack, [PackGradient(gradient, PackMetrics(num_pairs=1))])

    def call(self, body, own, *others: "tuple[Trainer, SharedSum]"):
        """Call a body here, with sums of others that it pulls."""
        self._patch.setattr(engine_module, "_engines", {"run": self.engine})
        if others:
            source, _ = others[0]
            self._patch.setattr(pulling, "_ask", source.source.ask)
        shared = [own for _, own in others]
        sources = [tuple(source.source.addresses) for source, _ in others]
        return call(body, own, others=shared, sources=sources)


@pytest.fixture
def trainers(tiny_flux, monkeypatch) -> Iterator[list[Trainer]]:
    """One here, two at another site. Of a pack some parameters may have no gradient."""
    threads = torch.get_num_threads()
    model = {"path": tiny_flux, "device": "cpu", "dtype": "float64", **TINY}
    config = RunConfig.model_validate({"model": model})
    yield [
        Trainer(config, monkeypatch, 0, a=1.0),
        Trainer(config, monkeypatch, 1, a=10.0, b=0.5),
        Trainer(config, monkeypatch, 2, a=100.0),
    ]
    torch.set_num_threads(threads)


def test_the_sum_of_a_site_by_hand(trainers):
    here, first, second = trainers
    alone, found = second.call(share_sum, second.total)
    assert (found, alone.packs) == (Reduced(-1, ""), {2})
    both, found = first.call(share_sum, first.total, (second, alone))
    assert (found, both.packs, both.metrics.num_pairs) == (Reduced(-1, ""), {1, 2}, 2)
    whole, found = here.call(reduce, here.total, (first, both))
    assert (found, whole.packs, whole.metrics.num_pairs) == (Reduced(-1, ""), {0, 1, 2}, 3)
    assert {name: value.tolist() for name, value in whole.gradient.items()} == {
        "a": [111.0, 222.0],
        "b": [0.5, 1.0],
    }
    again, _ = first.call(share_sum, first.total, (second, alone))
    assert again.hash == both.hash, "what is on a shelf, and a device's own sum, stay as they are"


def test_sums_of_updates_that_were_skipped_do_not_add_up(trainers):
    _, first, second = trainers
    first.engine.shelf.put(AVERAGE, "an average", {})
    alone, _ = second.call(share_sum, second.total)
    first.call(share_sum, first.total, (second, alone))
    assert len(list(first.engine.shelf)) == 2
    assert not empty_sum("run").packs  # of the next update
    assert list(first.engine.shelf) == [AVERAGE]


def test_a_sum_that_is_not_to_be_had_is_named_once(trainers):
    here, first, second = trainers
    alone, _ = second.call(share_sum, second.total)
    second.engine.shelf.drop(f"sum {alone.hash}")
    both, found = first.call(share_sum, first.total, (second, alone))
    assert found.failed == 0
    assert found.failure == "member-0 does not hold it any more"
    assert both.failure == found.failure
    _, found = here.call(reduce, here.total, (first, both))
    assert found == Reduced(0, NOT_SHARED), "who was asked for it has told of it"


def test_a_pack_that_two_sums_of_a_site_hold_is_refused(trainers):
    _, first, second = trainers
    second.total.packs = frozenset({1})
    alone, _ = second.call(share_sum, second.total)
    with pytest.raises(ValueError, match=r"packs \[1\] are in two sums"):
        first.call(share_sum, first.total, (second, alone))


@pytest.mark.parametrize("body", [share_sum, reduce])
def test_where_there_is_no_room_to_add_up_one_line_says_so(trainers, monkeypatch, body):
    def rows(total, gang):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(GradientSum, "rows", rows)
    with pytest.raises(UserError, match="trainer-0 has not enough memory to add up gradients"):
        trainers[0].call(body, trainers[0].total)
