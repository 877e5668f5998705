"""Hypothesis strategies for what a controller is given."""

import hypothesis.strategies as st

from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule, Screening, Workload
from support.random_cluster import make_workload

NUM_ITERATIONS = 3


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    may_be_stale = layout in ("tcss", "elastic")
    counts = st.one_of(st.none(), st.integers(0, 3))
    return Schedule(
        LAYOUTS[layout],
        max_stale_share=draw(st.sampled_from([0.0, 0.34, 0.5, 1.0])) if may_be_stale else 0.0,
        max_staleness=draw(st.integers(1, 4)),
        helpers=draw(counts),
        assistants=draw(counts),
        queue_depth=draw(st.integers(1, 2)),
        pulls_at_once=draw(st.sampled_from([None, 1])),
        copies_state=draw(st.booleans()),
    )


screenings = st.one_of(
    st.none(),
    st.builds(Screening, st.integers(3, 9), st.sampled_from([None, 1, 2])),
)


@st.composite
def workloads(draw: st.DrawFn, several_updates: bool = False) -> Workload:
    """Draw what an iteration is made of; with several updates, it makes 2, 3 or 4 an epoch."""
    group_size = draw(st.sampled_from([2, 6]))
    num_groups = draw(st.integers(2 if several_updates else 1, 4))
    trained = draw(st.integers(1, group_size))
    dealt_by = draw(st.sampled_from(["groups", "samples"]))
    units = num_groups * (1 if dealt_by == "groups" else trained)
    counts = (2, 3, 4) if several_updates else (1, 2, 3, 4)
    in_epoch = draw(st.sampled_from([n for n in counts if units % n == 0]))
    epochs = draw(st.sampled_from([1, 1, 2]))
    return make_workload(
        num_groups=num_groups,
        group_size=group_size,
        fragment_size=draw(st.sampled_from([1, 2, 6])),
        batch_size=draw(st.sampled_from([1, 4, 12])),
        pack_size=draw(st.integers(1, 9)),
        samples_per_pack=draw(st.integers(1, 4)),
        trained_per_group=trained,
        dealt_by=dealt_by,
        screening=draw(screenings),
        num_updates=in_epoch * epochs,
        epochs=epochs,
    )
