import pytest

from digen_core.sim.scenario import Scenario


@pytest.fixture
def scenario() -> Scenario:
    """Two groups of two samples: a fragment of one takes 4 s, a pack of two pairs 3 s."""
    return Scenario(
        devices=2,
        prompts=2,
        group_size=2,
        trained_per_group=2,
        steps=3,
        trained_steps=1,
        fragment_size=1,
        pack_size=2,
        d0=0.5,
        d1=0.5,
        vae=1.0,
        a=1.0,
        c=1.0,
        optimizer_step=0.5,
        reward_seconds=0.25,
        reward_servers=1,
        push=2.0,
        switch_colocated=6.0,
        helper_in=1.0,
        helper_out=1.5,
    )
