"""How long a pack takes in stages: by hand, by formula and by simulation, as real stages do it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from digen_core.gang import stages
from digen_core.planning.stages import pipeline
from digen_core.planning.stages.chain import Block, Chain
from digen_core.planning.stages.codecs import INT8_INT4, NONE
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.pipeline import Way, pipeline_of, simulate
from digen_core.planning.stages.placement import Placer, Stage
from support.stages import random_chain, random_network


def two_stages(*codecs, num_rows: int = 1):
    """Blocks of 1, 2 and 3 FLOP on devices of 1 and 2 FLOP/s, with a link of 1 byte/s."""
    blocks = tuple(Block(f"blocks.{n}", n + 1, 2 * n + 2, 0, 0, 0, 3.6) for n in range(3))
    chain = Chain(Block("before", 2, 4, 0, 0), blocks, Block("after", 1, 2, 0, 0), 0.5, num_rows)
    network = Network(np.array([1.0, 2.0]), np.ones(2), np.ones((2, 2)), np.full((2, 2), 0.25))
    return pipeline_of(chain, network, [Stage(0, 0, 1), Stage(1, 1, 3)], codecs)


def test_one_sample_by_hand():
    """There: 2 + 1, a cut of 3.6 + 0.25, (2 + 3 + 1) / 2; the velocities; back twice all of it."""
    found = two_stages(NONE)
    step = 3 + 3.85 + 3 + 0.75
    assert found.step_seconds(1) == pytest.approx(step)
    back = (4 + 6 + 4 + 2) / 2 + 3.85 + 2 + 4
    assert found.pack_seconds(1) == pytest.approx(step + back)
    coded = two_stages(INT8_INT4)
    assert coded.pack_seconds(1) == pytest.approx(step + back - 1.8 - 2.6)


def test_portions_by_hand():
    """Two samples: the second stage is the slowest, with what is before the blocks.

    Of the first sample it computes that while it waits, of the second it begins with it at 9.85 s.
    """
    found = two_stages(NONE)
    assert found.portions(2) == [1, 1]
    seconds = 3 + 3.85 + 3 + (1 + 3) + 0.25 + 2 * 0.5
    assert found.step_seconds(2) == pytest.approx(seconds)
    assert found.simulated_step(2) == pytest.approx(seconds)


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("num_samples", [1, 3, 4, 8, 9, 20])
def test_portions_are_those_of_real_stages(num_rows, num_samples):
    real = object.__new__(stages.Stage)
    real._last = 1
    rows = [own.stop - own.start for own in real._portions(num_samples * num_rows)]
    found = two_stages(NONE, num_rows=num_rows).portions(num_samples)
    assert [portion * num_rows for portion in found] == rows
    assert pipeline.PORTIONS_PER_STAGE == stages.PORTIONS_PER_STAGE


seconds = st.floats(0.01, 10)


@given(st.data())
def test_the_formula_is_exact_for_equal_portions(data):
    """Without anything that is computed while a stage waits."""
    num, count = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 9))

    def draw(length):
        return np.array(data.draw(st.lists(seconds, min_size=length, max_size=length)))

    way = Way(np.zeros(num), draw(num), draw(num - 1), draw(num - 1))
    portions = [data.draw(seconds)] * count
    assert way.seconds(portions) == pytest.approx(simulate(way, portions), rel=1e-9)


def test_the_formula_against_the_simulation():
    """40 plans of 2 to 24 stages, with samples that portions do not divide."""
    random, errors = np.random.default_rng(0), []
    for trial in range(40):
        network = random_network(random, [8, 8, 8] if trial % 2 else [3, 2, 2], memory=[6e10])
        chain = random_chain(random, 57)
        order = random.permutation(len(network.rates)).tolist()
        found = Placer(chain, network).place(order[: int(random.integers(2, len(order) + 1))])
        plan = pipeline_of(chain, network, found.stages, [NONE] * (len(found.stages) - 1))
        count = int(random.integers(1, 100))
        errors.append(abs(plan.pack_seconds(count) / plan.simulated_pack(count) - 1))
    assert np.median(errors) <= 0.05
    assert np.max(errors) <= 0.2


def test_a_stage_works_while_another_one_does():
    """Of 2 equal stages with 8 portions each waits for 1 in 9, as a test of real stages has it."""
    way = Way(np.zeros(2), np.ones(2), np.array([1e-9]), np.zeros(1))
    assert simulate(way, [1.0] * 8) == pytest.approx(9)
    assert simulate(way, [8.0]) == pytest.approx(16)
