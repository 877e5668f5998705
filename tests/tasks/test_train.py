"""Packs whose pairs are unlike: one part of each size of samples and length of text."""

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment, Pack, PairBlock
from digen_core.training.gradient import Agreement
from support.gang_cases import Case, pairs_of
from tasks.train import _alike, add_pack, empty_sum
from tasks.versions import first_state, shelved
from tasks.worker import engine as engine_module
from tasks.worker.engine import build_engine
from tasks.worker.fetching import load_version


def block(group: int) -> PairBlock:
    return PairBlock(Fragment(0, group, 0, 0, 2), 0, 0, 2)


def condition(tokens: int, negative: int | None = None) -> dict[str, np.ndarray]:
    def mask(count: int) -> np.ndarray:
        return (np.arange(8) < count).astype(np.int64)[None]

    found = {"prompt_embeds": np.zeros((1, 8, 4)), "mask": mask(tokens)}
    return found if negative is None else found | {"negative_mask": mask(negative)}


def one_expert(_block: PairBlock) -> int:
    return 0


def groups_of(parts: list[Pack]) -> list[list[int]]:
    return [[own.fragment.group for own in part.blocks] for part in parts]


def test_texts_of_one_length_stay_together():
    """Under a mask, attention would be computed by another kernel than in the rollout."""
    pack = Pack(0, 5, tuple(map(block, range(4))))
    lengths = {0: condition(3), 1: condition(6), 2: condition(3), 3: condition(6)}
    parts = _alike(pack, RunConfig(), lengths, one_expert)
    assert groups_of(parts) == [[0, 2], [1, 3]]
    assert {(part.iteration, part.index) for part in parts} == {(0, 5)}


def test_both_halves_of_guidance_count():
    pack = Pack(0, 0, (block(0), block(1)))
    assert len(_alike(pack, RunConfig(), {0: condition(3, 2), 1: condition(3, 2)}, one_expert)) == 1
    assert len(_alike(pack, RunConfig(), {0: condition(3, 2), 1: condition(3, 4)}, one_expert)) == 2


def test_families_without_a_mask_and_one_size_need_one_part():
    pack = Pack(0, 0, (block(0), block(1)))
    plain = {"prompt_embeds": np.zeros((1, 8, 4))}
    assert _alike(pack, RunConfig(), {0: plain, 1: plain}, one_expert) == [pack]


def test_numbers_of_steps_count():
    """Their schedules differ, and with them what stands for the second noise level."""
    own = {0: 8, 1: 4, 2: 8}
    blocks = [PairBlock(Fragment(0, g, 0, 0, 2, num_steps=n), 0, 0, 2) for g, n in own.items()]
    plain = {"prompt_embeds": np.zeros((1, 8, 4))}
    parts = _alike(Pack(0, 0, tuple(blocks)), RunConfig(), dict.fromkeys(own, plain), one_expert)
    assert groups_of(parts) == [[0, 2], [1]]


def test_sizes_of_samples_count():
    config = RunConfig.model_validate({"model": {"sizes": [[32, 32, 1], [48, 32, 1]]}})
    pack = Pack(0, 0, tuple(map(block, range(3))))
    plain = {"prompt_embeds": np.zeros((1, 8, 4))}
    assert groups_of(_alike(pack, config, dict.fromkeys(range(3), plain), one_expert)) == [
        [0, 2],
        [1],
    ]


def test_pairs_of_two_experts_are_apart():
    pack = Pack(0, 0, tuple(map(block, range(3))))
    plain = {"prompt_embeds": np.zeros((1, 8, 4))}
    conditions = dict.fromkeys(range(3), plain)
    parts = _alike(pack, RunConfig(), conditions, lambda own: own.fragment.group // 2)
    assert groups_of(parts) == [[0, 1], [2]]


def test_only_a_runs_first_packs_are_compared_with_those_without_coded_cuts(
    tiny_families, monkeypatch
):
    """In later updates of the first iteration ratios are not 1 with them, but are without."""
    monkeypatch.setattr(engine_module, "_engines", {})
    config = Case("flux", cuts=({"block": 2},)).config(tiny_families["flux"])
    engine = build_engine("run", config, "trainer-0", frozenset({"trainer"}))
    assert not load_version("run", shelved("run", first_state("run"), False), ())
    pairs = pairs_of(engine.policy, config, 2)
    for iteration, trained_from, is_compared in ((0, 0, True), (0, -1, False), (1, 0, False)):
        total = empty_sum("run")
        assert add_pack("run", 0, total, iteration, 0, [(0, pairs)], trained_from) == "added"
        assert (total.metrics.agreement != Agreement()) == is_compared
