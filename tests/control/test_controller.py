"""The controller: a scene by hand, then invariants under every order of completion."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from digen_core.control import protocol as p
from digen_core.control.controller import QUEUE_DEPTH, Controller, ControllerError, Workload

ROLLOUT, TRAINER = frozenset({"rollout"}), frozenset({"trainer"})


def controller(num_rollout=1, num_trainers=1, **changes) -> Controller:
    shape = {
        "num_groups": 2,
        "group_size": 4,
        "fragment_size": 2,
        "num_steps": 3,
        "pack_size": 4,
        "advantages_need_all_groups": False,
    }
    devices = [p.Device(f"rollout-{i}", ROLLOUT) for i in range(num_rollout)]
    devices += [p.Device(f"trainer-{i}", TRAINER) for i in range(num_trainers)]
    made = Controller(devices, Workload(**{**shape, **changes}))
    for push in made.start():
        made.handle(p.VersionLoaded(push.device, push.version))
    return made


def test_an_iteration_by_hand():
    it = controller()
    first, second = it.fragments_of(0, 0)
    assert it.handle(p.IterationOffered(0, (0, 1))) == [
        p.Encode(0, 0, "rollout-0"),
        p.Generate(first, 0, 3, 0, "rollout-0"),
        p.Generate(second, 0, 3, 0, "rollout-0"),
    ]
    third, fourth = it.fragments_of(0, 1)
    assert it.handle(p.FragmentGenerated(first)) == [
        p.Score(first, "rollout-0"),
        p.Encode(0, 1, "rollout-0"),
        p.Generate(third, 0, 3, 0, "rollout-0"),
    ]
    assert it.handle(p.FragmentGenerated(second)) == [
        p.Score(second, "rollout-0"),
        p.Generate(fourth, 0, 3, 0, "rollout-0"),
    ]
    assert it.handle(p.FragmentScored(second)) == []
    assert it.handle(p.FragmentScored(first)) == [p.ComputeAdvantages(0, (0,), "trainer-0")]
    assert it.handle(p.AdvantagesComputed(0, (0,), ())) == []  # the barrier
    it.handle(p.FragmentGenerated(third))
    it.handle(p.FragmentGenerated(fourth))
    it.handle(p.FragmentScored(third))
    it.handle(p.FragmentScored(fourth))
    trains = it.handle(p.AdvantagesComputed(0, (1,), (1,)))  # group 1 carries no signal
    assert [type(train) for train in trains] == [p.Train, p.Train]
    assert [train.pack.num_pairs for train in trains] == [4, 4]  # 4 samples at 2 steps
    assert {b.fragment.group for train in trains for b in train.pack.blocks} == {0}
    assert it.handle(p.PackTrained(trains[0].pack)) == []
    assert it.handle(p.PackTrained(trains[1].pack)) == [p.Reduce(0, ("trainer-0",), "trainer-0")]
    assert it.handle(p.GradientReduced(0)) == [p.Step(0, 0, "trainer-0")]
    assert it.handle(p.Stepped(1)) == [p.Push(1, "rollout-0"), p.Push(1, "trainer-0")]
    assert it.handle(p.VersionLoaded("trainer-0", 1)) == []
    assert it.handle(p.VersionLoaded("rollout-0", 1)) == [p.FinishIteration(0, updated=True)]


def test_packs_queue_on_the_trainer_two_deep():
    it = controller(num_groups=1, pack_size=1)
    it.handle(p.IterationOffered(0, (0, 1)))
    for fragment in it.fragments_of(0, 0):
        it.handle(p.FragmentGenerated(fragment))
        it.handle(p.FragmentScored(fragment))
    trains = it.handle(p.AdvantagesComputed(0, (0,), ()))
    assert len(trains) == QUEUE_DEPTH
    assert len(it.handle(p.PackTrained(trains[0].pack))) == 1


def test_without_any_signal_the_iteration_ends_without_an_update():
    it = controller(num_groups=1, fragment_size=4)
    it.handle(p.IterationOffered(0, (0,)))
    (fragment,) = it.fragments_of(0, 0)
    it.handle(p.FragmentGenerated(fragment))
    it.handle(p.FragmentScored(fragment))
    assert it.handle(p.AdvantagesComputed(0, (0,), (0,))) == [p.FinishIteration(0, updated=False)]
    assert it.handle(p.IterationOffered(1, (0,)))  # with the same version, still loaded everywhere


def test_a_batch_wide_scale_waits_for_all_groups():
    it = controller(fragment_size=4, advantages_need_all_groups=True)
    it.handle(p.IterationOffered(0, (0,)))
    ((one,), (two,)) = it.fragments_of(0, 0), it.fragments_of(0, 1)
    it.handle(p.FragmentGenerated(one))
    it.handle(p.FragmentGenerated(two))
    assert it.handle(p.FragmentScored(two)) == []
    assert it.handle(p.FragmentScored(one)) == [p.ComputeAdvantages(0, (0, 1), "trainer-0")]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (p.VersionLoaded("rollout-0", 3), "rollout-0 loaded version 3 unasked"),
        (p.FragmentGenerated(p.Fragment(0, 0, 0, 0, 2)), "was not being generated"),
        (p.FragmentScored(p.Fragment(0, 0, 0, 0, 2)), "scored but not waited for"),
        (p.AdvantagesComputed(0, (0,), ()), "already have advantages"),
        (p.PackTrained(p.Pack(0, 0, ())), "pack 0 was not being trained"),
        (p.Stepped(2), "version 2 does not follow"),
    ],
)
def test_an_event_that_cannot_be_is_an_error_that_shows_the_state(event, message):
    with pytest.raises(ControllerError, match=message):
        controller().handle(event)


def test_a_missing_role_is_refused():
    with pytest.raises(ValueError, match="no worker has the role 'trainer'"):
        Controller([p.Device("rollout-0", ROLLOUT)], Workload(1, 2, 2, 2, 1, False))


class Cluster:
    """Carries out instructions in any order and checks what must hold."""

    def __init__(self, it: Controller, num_steps: int) -> None:
        self.it = it
        self.num_steps = num_steps
        self.running: list[p.Instruction] = []
        self.generated: set[p.Fragment] = set()
        self.with_advantages: set[int] = set()
        self.trained: list[tuple[p.Fragment, int, int]] = []
        self.sums: set[str] = set()
        self.version = 0
        self.loaded: dict[str, int] = {}
        self.finished = False

    def carry_out(self, instructions: list[p.Instruction]) -> None:
        for do in instructions:
            if isinstance(do, p.FinishIteration):
                assert not self.running, "the iteration ended with work under way"
                self.finished = True
            elif not isinstance(do, p.Encode):
                self._check(do)
                self.running.append(do)

    def _check(self, do: p.Instruction) -> None:
        match do:
            case p.Generate(fragment, first, end, version):
                assert (first, end, version) == (0, self.num_steps, self.version)
                assert fragment not in self.generated, "generated twice"
                self.generated.add(fragment)
            case p.Train(pack, version, device):
                assert version == self.version
                self.sums.add(device)
                for block in pack.blocks:
                    assert block.fragment.group in self.with_advantages
                    rows = range(block.first_row, block.first_row + block.num_rows)
                    self.trained += [(block.fragment, block.step, row) for row in rows]
            case p.Reduce(_, devices, _):
                assert set(devices) == self.sums
            case p.Push(version, _):
                assert version == self.version

    def event_of(self, do: p.Instruction, skipped: set[int]) -> p.Event:
        match do:
            case p.Generate(fragment):
                return p.FragmentGenerated(fragment)
            case p.Score(fragment):
                return p.FragmentScored(fragment)
            case p.ComputeAdvantages(_, groups):
                self.with_advantages.update(groups)
                return p.AdvantagesComputed(0, groups, tuple(g for g in groups if g in skipped))
            case p.Train(pack):
                return p.PackTrained(pack)
            case p.Reduce():
                return p.GradientReduced(0)
            case p.Step(_, version):
                self.version = version + 1
                return p.Stepped(self.version)
            case p.Push(version, device):
                self.loaded[device] = version
                return p.VersionLoaded(device, version)
        raise AssertionError(do)


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 6]),
    st.integers(1, 9),
    st.booleans(),
    st.sets(st.integers(0, 3)),
    st.randoms(use_true_random=False),
)
def test_any_order_of_completion(
    num_rollout, num_trainers, num_groups, fragment_size, pack_size, whole_batch, skipped, random
):
    it = controller(
        num_rollout,
        num_trainers,
        num_groups=num_groups,
        group_size=6,
        fragment_size=fragment_size,
        pack_size=pack_size,
        advantages_need_all_groups=whole_batch,
    )
    cluster = Cluster(it, num_steps=3)
    for iteration in range(2):
        cluster.generated, cluster.trained, cluster.sums = set(), [], set()
        cluster.with_advantages, cluster.finished = set(), False
        cluster.carry_out(it.handle(p.IterationOffered(iteration, (0, 2))))
        while not cluster.finished:
            assert cluster.running, "deadlock"
            do = cluster.running.pop(random.randrange(len(cluster.running)))
            cluster.carry_out(it.handle(cluster.event_of(do, skipped)))
        informative = [group for group in range(num_groups) if group not in skipped]
        pairs = {
            (fragment, step, row)
            for group in informative
            for fragment in it.fragments_of(iteration, group)
            for step in (0, 2)
            for row in range(fragment.num_samples)
        }
        assert len(cluster.trained) == len(pairs)
        assert set(cluster.trained) == pairs
        assert cluster.version == (iteration + 1 if informative else 0)
        if informative:
            assert set(cluster.loaded.values()) == {cluster.version}
