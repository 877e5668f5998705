"""Gangs in stages: of which unequal devices, cut where, and what their work costs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from digen_core.config.cuts import CutConfig
from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.gang.codecs import Codecs
from digen_core.planning.candidates import may_be_staged
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.memory import Memory
from digen_core.planning.stages.candidates import staged_candidates
from digen_core.planning.stages.codecs import CODECS, INT8_INT4, NONE
from digen_core.planning.stages.costs import costs_of
from digen_core.planning.stages.gangs import Maker, Staged
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.placement import Stage
from digen_core.planning.stages.plans import plan_of
from support.staged import CHAIN, CONTEXT, GB, LARGE, SIZES, SMALL, WHOLE, cluster_of

CONFIG = RunConfig.model_validate(
    {
        "model": {"dtype": "bfloat16"},
        "rollout": {"group_size": 8, "fragment_size": 8},
        "train": {"pack_size": 2},
    }
)


def made(cluster: Cluster, *, codecs=(NONE,), config=CONFIG, text=0, share=1.0) -> list[Staged]:
    return Maker(config, cluster, CHAIN, SIZES, codecs, text, share).all()


def dealt(staged: Staged) -> tuple[int, ...]:
    return staged.config.parallel.stage_blocks


def test_the_large_cards_lead_and_have_twice_the_blocks():
    """8 blocks of 1 GB: of two stages with 6 and 3 GB, the fast one has as many as it can hold."""
    found = {own.config.parallel.stages: own for own in made(cluster_of(LARGE, SMALL))}
    two, four = found[2], found[4]
    assert dealt(two) == (5, 3)
    assert two.ranks == {f"2-stages-{number}": ("large", "small") for number in range(4)}
    assert [(g.num_devices, g.members) for g in two.devices.devices] == [(4, 2)]
    assert dealt(four) == (3, 3, 1, 1)
    members = ("large", "large", "small", "small")
    assert four.ranks == {f"4-stages-{number}": members for number in range(2)}
    assert four.devices.devices[0].num_devices == 2
    assert two.left_out == four.left_out == {}


def test_of_several_sizes_work_costs_what_the_mean_one_takes():
    """The chain is of the largest, of 128 x 128 pixels: the mean of the two has 5/8 of its tokens.

    What is decoded is counted at the size of evaluations.
    """

    def costs(side: int, *sides: int):
        sizes = [[own, own, 1] for own in sides]
        model = {"path": "nobody/has-this", "height": side, "width": side, "sizes": sizes}
        config = RunConfig.model_validate(CONFIG.model_dump() | {"model": model})
        return made(cluster_of(LARGE), config=config)[0].devices.devices[0].costs

    alone = costs(128)
    for side, decoding in ((64, 4.0), (128, 1.0)):
        found = costs(side, 64, 128)
        assert found.decode.per_item == pytest.approx(decoding * 5 / 8 * alone.decode.per_item)
        assert found.pack(2) == pytest.approx(5 / 8 * alone.pack(2), rel=0.1)
        assert found.pack(2) < alone.pack(2)


def test_gangs_are_cut_for_the_least_of_their_devices():
    """5 large and 3 small cards in gangs of two: one second stage is large, and used as small."""
    cluster = cluster_of(LARGE | {"count": 5}, SMALL | {"count": 3})
    (two,) = (own for own in made(cluster) if own.config.parallel.stages == 2)
    assert list(two.ranks.values()) == [("large", "large"), *[("large", "small")] * 3]
    assert dealt(two) == (5, 3)
    odd = made(cluster_of(LARGE | {"count": 5}, SMALL))
    assert {own.config.parallel.stages: own.left_out for own in odd}[2] == {"small": 1}


def test_a_leader_has_room_for_its_text_encoders():
    cluster = cluster_of(LARGE, LARGE | {"kind": "other"})
    (two,) = (own for own in made(cluster, text=3 * GB) if own.config.parallel.stages == 2)
    assert dealt(two) == (3, 5)
    (two,) = (own for own in made(cluster, share=0.5) if own.config.parallel.stages == 2)
    assert dealt(two) == (3, 5)


def test_across_sites_whoever_leads_has_room_for_its_text_encoders():
    """Of 6 GB the large card has 3 left for its stage, in whichever order cards are listed."""
    link = {"between": ("here", "there"), "gbit_per_second": 1, "latency": 0.01}
    cards = [SMALL | {"count": 2, "site": "here"}, LARGE | {"count": 1, "site": "there"}]
    for groups in (cards, cards[::-1]):
        (across,) = made(cluster_of(*groups, links=(link,)), text=3 * GB)
        assert list(across.ranks.values()) == [("large@there", "small@here", "small@here")]
        assert dealt(across) == (3, 2, 3)


def test_devices_that_cannot_hold_it_together_make_no_gang():
    assert made(cluster_of(SMALL | {"count": 2})) == []


def test_the_number_of_stages_that_a_config_says_is_kept():
    parallel = CONFIG.parallel.model_copy(update={"stages": 4})
    config = CONFIG.model_copy(update={"parallel": parallel})
    found = made(cluster_of(LARGE, SMALL), config=config)
    assert [own.config.parallel.stages for own in found] == [4]


def test_each_site_has_gangs_of_its_own_if_it_can():
    """A link of 8 Mb/s between sites is crossed by no cut."""
    link = {"between": ("here", "there"), "gbit_per_second": 0.008, "latency": 0.05}
    groups = (LARGE | {"site": "here"}, LARGE | {"kind": "far", "site": "there"})
    two = made(cluster_of(*groups, links=(link,)))[0]
    assert {group.kind: group.site for group in two.devices.devices} == {
        f"{two.config.parallel.stages}-stages-{site}": site for site in ("here", "there")
    }
    alone = [group | {"count": 1} for group in groups]
    (across,) = made(cluster_of(*alone, links=(link,)))
    assert across.ranks.popitem()[1] in {
        ("large@here", "far@there"),
        ("far@there", "large@here"),
    }
    group = across.devices.devices[0]
    assert group.costs.pack(1) > 2 * 1e7 / 1e6  # 10 MB there, and back


def test_a_site_alone_has_more_pairs_than_both_cut_as_the_weak_one_needs_it():
    """Alone the good site has gangs of two; in its own number of stages the weak one adds some."""
    link = {"between": ("here", "there"), "gbit_per_second": 0.008, "latency": 0.05}
    weak = {"kind": "weak", "count": 9, "tflops": 10, "capacity": 1.2 + CONTEXT, "site": "there"}
    best, alone, *_ = made(cluster_of(LARGE | {"site": "here"}, weak, links=(link,)))
    assert [group.site for group in best.devices.devices] == ["here", "there"]
    assert best.config.parallel.stages_by_size
    assert [group.site for group in alone.devices.devices] == ["here"]
    assert alone.left_out == {"weak": 9}


def test_the_number_of_stages_that_is_asked_for_is_that_across_sites_too():
    link = {"between": ("here", "there"), "gbit_per_second": 1.0}
    one = LARGE | {"count": 1}
    groups = [one | {"site": "here"}, one | {"kind": "far", "site": "there"}]
    cluster = cluster_of(*groups, links=(link,))
    for stages, number in ((2, 1), (3, 0)):
        parallel = CONFIG.parallel.model_copy(update={"stages": stages})
        found = made(cluster, config=CONFIG.model_copy(update={"parallel": parallel}))
        assert len(found) == number


def test_a_card_with_no_memory_to_speak_of_is_in_no_gang():
    assert made(cluster_of(LARGE | {"count": 2, "capacity": 0.3})) == []


def test_sites_without_links_are_not_planned_with():
    here, there = LARGE | {"site": "here"}, LARGE | {"kind": "far", "site": "there"}
    link = {"between": ("here", "there"), "gbit_per_second": 1.0}
    assert not may_be_staged(cluster_of(here, there))
    assert may_be_staged(cluster_of(here, there, links=(link,)))
    assert may_be_staged(cluster_of(LARGE, SMALL))


def test_cuts_have_the_mildest_codec_that_is_enough():
    """Stages of 5 blocks take 50 ms there. 10 MB at 0.25 GB/s take 40: enough; at 0.12 83."""
    for network, codec in ((0.25, None), (0.12, ("int8", "int8")), (0.04, ("int8", "int4"))):
        two = next(
            own
            for own in made(cluster_of(LARGE, SMALL, network=network), codecs=CODECS)
            if own.config.parallel.stages == 2
        )
        found = [(cut.block, cut.forward, cut.backward) for cut in two.config.model.cuts]
        assert found == ([] if codec is None else [(dealt(two)[0], *codec)]), network
        plain = made(cluster_of(LARGE, SMALL, network=network))
        assert all(own.config.model.cuts == () for own in plain)


def test_packs_have_portions_as_large_as_the_packs_of_the_config():
    two = next(own for own in made(cluster_of(LARGE, SMALL)) if own.config.parallel.stages == 2)
    assert two.config.train.pack_size == 2 * 4 * 2


def test_costs_by_hand():
    """Two stages of 4 blocks: 40 ms a portion there, 80 back, denoising half; a link takes 10."""
    rates = np.full(2, 1e14)
    network = Network(rates, np.full(2, 1e12), np.full((2, 2), 1e9), np.zeros((2, 2)))
    plan = plan_of(CHAIN, network, [Stage(0, 0, 4), Stage(1, 4, 8)])
    cluster = cluster_of(LARGE)  # denoising reaches twice the share of the peak
    costs = costs_of(plan, 1e14, cluster, CONFIG, SIZES)
    assert costs.decode(3) == pytest.approx(3 * 1e12 / 2e14)
    assert costs.step(1) == pytest.approx(0.02 + 0.01 + 0.02)
    assert costs.step(8) == pytest.approx(0.05 + 7 * 0.02)
    assert costs.pack(1) == pytest.approx(0.09 + 0.17)
    assert costs.pack(2) == pytest.approx(0.26 + 0.04 + 0.08)
    algorithm = CONFIG.algorithm.model_copy(update={"kl_coefficient": 0.1})
    with_kl = CONFIG.model_copy(update={"algorithm": algorithm})
    asked = costs_of(plan, 1e14, cluster, with_kl, SIZES)
    assert asked.pack(1) == pytest.approx(0.26 + 0.09)
    # what generation is to ask in place of training is moved there later, once
    assert costs_of(plan, 1e14, cluster, with_kl.asking("generation"), SIZES) == asked
    prompts = CONFIG.prompts.model_copy(update={"sample_columns": ("a", "b")})
    files = costs_of(plan, 1e14, cluster, CONFIG.model_copy(update={"prompts": prompts}), SIZES)
    assert files.step(3) == pytest.approx(3 * 1e12 / 2e14 / CONFIG.rollout.num_steps)


def test_candidates_are_those_whose_leaders_can_decode_too():
    asked = []

    def memory_of(config: RunConfig, size: int) -> Memory:
        blocks = config.parallel.stage_blocks
        asked.append((size, blocks))
        weights = blocks[0] * GB
        return replace(WHOLE, weights=weights, decode=Linear(per_item=2.5 * GB))

    cluster = cluster_of(LARGE, SMALL)
    found = staged_candidates(CONFIG, cluster, CHAIN, SIZES, (NONE,), 0, memory_of)
    assert found
    for own in found:
        assert own.config.parallel.stage_blocks[0] <= 3
        assert own.room.fragment_size >= 1
        assert own.ranks
    assert all(size == len(blocks) for size, blocks in asked)

    def too_large(config: RunConfig, size: int) -> Memory:
        return replace(WHOLE, weights=100 * GB)

    assert staged_candidates(CONFIG, cluster, CHAIN, SIZES, CODECS, 0, too_large) == []


@pytest.mark.parametrize("codec", CODECS)
def test_ratios_are_those_of_what_is_sent(codec):
    """Of a stream of 3,072 channels in bfloat16, within 2%."""
    own = Codecs.of(CutConfig(block=1, forward=codec.forward, backward=codec.backward))
    x = torch.ones(1, 4, 3072, dtype=torch.bfloat16)
    for ratio, real in ((codec.there, own.there), (codec.back, own.back)):
        assert x.nbytes / sum(part.nbytes for part in real.encode(x)) == pytest.approx(
            ratio, rel=0.02
        )


def test_names_of_codecs_are_those_of_configs():
    assert [(c.forward, c.backward) for c in CODECS] == [
        ("none", "none"),
        ("int8", "int8"),
        ("int8", "int4"),
    ]
    assert INT8_INT4.back == 3.6
