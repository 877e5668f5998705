"""Simulations of the real controller whose times were worked out by hand."""

from dataclasses import replace

import pytest

from digen_core.control import protocol
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from digen_core.planning.search import Choice, simulate_choice
from digen_core.sim.clock import Jitter
from digen_core.sim.kinds import DeviceKind
from digen_core.sim.ledger import SimulationError
from digen_core.sim.report import Staleness, make_report
from digen_core.sim.scenario import Scenario
from digen_core.sim.simulation import Simulation
from digen_core.sim.simulator import simulate
from support.batches import alone


def run(scenario, layout, num_rollout, **options):
    options = {"num_iterations": 3, **options}
    return simulate_choice(scenario, Choice(layout, num_rollout), **options)


def spans_of(report, kind, iteration=0):
    return [
        (span.task, span.device, span.started, span.ended)
        for span in report.spans
        if span.kind == kind and span.iteration == iteration
    ]


def test_disaggregated_by_hand(scenario):
    report = run(scenario, "disaggregated", 1)
    # 4 fragments of 4 s, the last reward, 4 packs of one pair of 2 s, step, push.
    assert report.iteration_ends == pytest.approx([26.75, 53.5, 80.25])
    assert 16 + 0.25 + 8 + 0.5 + 2 == report.seconds == 26.75
    assert spans_of(report, "denoise") == [
        ("denoise g00 f0 t00-02", "rollout-0", 0.0, 4.0),
        ("denoise g00 f1 t00-02", "rollout-0", 4.0, 8.0),
        ("denoise g01 f0 t00-02", "rollout-0", 8.0, 12.0),
        ("denoise g01 f1 t00-02", "rollout-0", 12.0, 16.0),
    ]
    assert spans_of(report, "score")[-1] == ("score g01 f1", "reward-servers", 16.0, 16.25)
    assert spans_of(report, "step") == [("optimizer step v1", "trainer-0", 24.25, 24.75)]
    pushes = [s for s in report.spans if s.kind == "push" and s.version == 1]
    assert [(s.device, s.started, s.ended) for s in pushes] == [
        ("trainer-0", 24.75, 24.75),
        ("rollout-0", 24.75, 26.75),
    ]


def test_batches_of_several_groups_by_hand(scenario):
    """A step of one sample takes 1 s, of which d0 is half: in a batch it comes once."""
    fixed, each = 0.5, 0.5
    assert (scenario.d0, scenario.d1) == (fixed, each)
    many = scenario.model_copy(update={"prompts": 3, "group_size": 1, "trained_per_group": 1})
    report = run(many.model_copy(update={"batch_size": 2}), "disaggregated", 1)
    two, one = 3 * (fixed + 2 * each) + 2 * 1.0, 3 * (fixed + each) + 1.0
    assert spans_of(report, "denoise") == [
        ("denoise g00 f0 +1 t00-02", "rollout-0", 0.0, two),
        ("denoise g02 f0 t00-02", "rollout-0", two, two + one),
    ]
    ((span, *_),) = [[s for s in report.spans if s.kind == "denoise"]][:1]
    assert (span.num_items, span.fragments) == (2, ((0, 0), (1, 0)))
    assert report.seconds == pytest.approx(two + one + 0.25 + 3 * 2 + 0.5 + 2)
    costs = many.costs(1).kinds["default"]
    work = many.model_copy(update={"batch_size": 2}).workload
    assert costs.generation(work) == pytest.approx(two + one)
    assert costs.generation(many.workload) == pytest.approx(3 * one)


def test_what_is_late_goes_on_elsewhere_by_hand(scenario):
    """Of two devices that generate one takes 10 s for a step, and nobody knows; the other 1 s."""
    kinds = {"slow": DeviceKind(count=1, unforeseen=10.0), "rest": DeviceKind(count=2)}
    own = scenario.model_copy(update={"kinds": kinds, "devices": 3})
    report = run(own, "disaggregated", 2)
    # The other one does three fragments in 12 s, and has nothing to do while the slow one is at the
    # second step of its first, till 20 s; then the last step and decoding are done there.
    assert [own for own in spans_of(report, "denoise") if "g00 f0" in own[0]] == [
        ("denoise g00 f0 t00-01", "rollout-0", 0.0, 20.0),
        ("denoise g00 f0 t02-02", "rollout-1", 20.0, 22.0),
    ]
    assert report.seconds == pytest.approx(22 + 0.25 + 8 + 0.5 + 2)
    known = own.model_copy(update={"kinds": {**kinds, "slow": DeviceKind(count=1)}})
    assert run(known, "disaggregated", 2).seconds == pytest.approx(8 + 2 * 0.25 + 8 + 0.5 + 2)


def test_groups_of_several_numbers_of_steps_by_hand(scenario):
    """Fragments of the second group take 3 s, with 2 steps in place of 3; of each one is trained.

    With all of its steps trained, the first group has 3 pairs of each sample and the second 2.
    """
    report = run(scenario.model_copy(update={"group_steps": (3, 2)}), "disaggregated", 1)
    assert report.seconds == pytest.approx(4 + 4 + 3 + 3 + 0.25 + 8 + 0.5 + 2)
    assert [task for task, *_ in spans_of(report, "denoise")][-1] == "denoise g01 f1 t00-01"
    whole = scenario.model_copy(update={"group_steps": (3, 2), "trained_steps": 3})
    report = run(whole, "disaggregated", 1)
    assert report.seconds == pytest.approx(14 + 0.25 + (2 * 3 + 2 * 2) * 2 + 0.5 + 2)
    assert whole.num_pairs == 10
    assert whole.workload.group_trained == (3, 2)
    assert whole.workload.mean_steps == 2.5


@pytest.mark.parametrize(("pulls", "after"), [(None, [2, 2, 2, 2]), (1, [2, 4, 4, 6])])
def test_sources_of_all_weights_double_with_each_push(scenario, pulls, after):
    """A device serves one at a time: the trainer, then the first with it, then all three."""
    changes = {"devices": 5, "pulls_at_once": pulls, "prompts": 4}
    report = run(scenario.model_copy(update=changes), "disaggregated", 4)
    (made,) = [end for _, _, _, end in spans_of(report, "step")]
    pushes = [s for s in report.spans if s.kind == "push" and s.version == 1]
    taken = [s.ended - made for s in pushes if s.device != "trainer-0"]
    assert taken == pytest.approx(after)
    assert report.iteration_ends[0] == pytest.approx(made + after[-1])


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_sums_of_the_other_trainers_are_brought_one_after_the_other(scenario, seconds):
    changes = {"devices": 4, "prompts": 4, "gradient_sum": seconds}
    report = run(scenario.model_copy(update=changes), "disaggregated", 1)
    packs = [span for span in report.spans if span.kind == "train" and span.iteration == 0]
    assert len({span.device for span in packs}) == 3
    ((_, holder, started, _),) = spans_of(report, "step")
    trained = max(span.ended for span in packs)
    assert started == pytest.approx(trained + 2 * seconds)
    reduced = [("reduce", holder, trained, started)] if seconds else []  # else it is an event
    assert spans_of(report, "reduce") == reduced


def test_tsp_by_hand(scenario):
    report = run(scenario, "tsp", 1)
    # The first group is trained while the second is generated; that one's pack takes 3 s.
    assert spans_of(report, "train") == [
        ("train p000", "trainer-0", 8.25, 11.25),
        ("train p001", "trainer-0", 16.25, 19.25),
    ]
    assert report.seconds == 16 + 0.25 + 3 + 0.5 + 2
    assert report.busy_share == {
        "rollout-0": pytest.approx(16 / 21.75),
        "trainer-0": pytest.approx(6.5 / 21.75),
    }
    assert report.idle_seconds == {
        "rollout-0": pytest.approx(5.75),
        "trainer-0": pytest.approx(15.25),
    }
    assert (report.max_staleness, report.mean_staleness) == (0, 0.0)


def test_colocated_by_hand(scenario):
    # Two waves, all rewards, switch, two packs of a pair each, step, push, switch.
    assert run(scenario, "colocated", None).seconds == 8 + 1 + 3 + 4 + 0.5 + 2 + 3
    # All but the last two rewards are hidden; a pack of two pairs each.
    assert run(scenario, "colocated-strong", None).seconds == 8 + 0.5 + 3 + 3 + 0.5 + 2 + 3


def test_stale_groups_fill_the_tail(scenario):
    many = scenario.model_copy(update={"prompts": 8})
    stale = simulate_choice(many, Choice("tcss", 1, stale_share=0.5), num_iterations=12)
    assert stale.seconds == pytest.approx(64.0)  # the rollout device never waits
    assert stale.busy_share["rollout-0"] == pytest.approx(1.0)
    assert stale.max_staleness == 1
    assert 0 < stale.mean_staleness <= 0.5
    assert run(many, "tsp", 1).seconds == pytest.approx(64 + 0.25 + 3 + 0.5 + 2)


def test_the_seed_decides(scenario):
    many = scenario.model_copy(update={"prompts": 8, "devices": 4})
    seeds = [run(many, "elastic", 2, seed=seed, jitter=0.1).spans for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_best_of_n_trains_as_many_samples_as_it_should(scenario):
    best = scenario.model_copy(update={"group_size": 4, "trained_per_group": 2, "steps": 1})
    report = run(best, "tsp", 1)
    trained = [span.num_items for span in report.spans if span.kind == "train"]
    assert sum(trained) == 3 * 2 * 2  # iterations, groups, samples


def test_too_few_iterations_for_a_steady_state(scenario):
    with pytest.raises(ValueError, match="num_iterations is 1; a steady state takes 2"):
        run(scenario, "tsp", 1, num_iterations=1)


class Script:
    """A controller that orders what a test wants when the first iteration is offered."""

    holder = "trainer-0"

    def __init__(self, *orders):
        self.orders, self.events = orders, []

    def start(self):
        return [protocol.Push(0, name, "trainer-0") for name in ("rollout-0", "trainer-0")]

    def handle(self, event):
        self.events.append(event)
        first_offer = isinstance(event, protocol.IterationOffered) and event.iteration == 0
        return list(self.orders) if first_offer else []

    def __repr__(self):
        return "Script(waiting for more)"


def script(scenario, *orders):
    controller = Script(*orders)
    simulation = Simulation(
        controller,
        scenario.cluster(1),
        scenario.workload,
        Schedule(LAYOUTS["tsp"]),
        scenario.costs(1),
        (0,),
        Jitter(0.0, 0),
    )
    return controller, simulation


FRAGMENT = protocol.Fragment(0, 0, 0, 0, 1, num_steps=3)
GENERATE = protocol.Generate(alone(FRAGMENT), 0, 3, 0, "rollout-0")
PACK = protocol.Pack(0, 0, (protocol.PairBlock(FRAGMENT, 0, 0, 1),))


def test_a_stall_shows_the_controller(scenario):
    controller, simulation = script(scenario)
    with pytest.raises(SimulationError, match=r"stalled at 0\.0 s in iteration 1: Script"):
        simulation.run(3)
    assert [e.iteration for e in controller.events if hasattr(e, "trained_steps")] == [0, 1]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            protocol.Generate(alone(FRAGMENT), 0, 3, 1, "rollout-0"),
            r"rollout-0 holds the versions \[0\]",
        ),
        (
            protocol.Generate(alone(FRAGMENT), 1, 3, 0, "rollout-0"),
            "does not follow what was denoised",
        ),
        (protocol.Generate(alone(FRAGMENT), 0, 4, 0, "rollout-0"), "no such steps"),
        (protocol.Generate(alone(FRAGMENT), 0, 3, 0, "gpu-7"), "there is no device gpu-7"),
        (protocol.Pause(alone(FRAGMENT), "rollout-0"), "rollout-0 does not generate"),
        (protocol.Score(FRAGMENT, "rollout-0"), "a fragment that is not generated"),
        (protocol.Train(PACK, 0, "trainer-0"), "group 0 has no advantages"),
        (protocol.Step(0, 1, "trainer-0"), "the newest version is 0"),
        (protocol.Push(1, "rollout-0", "trainer-0"), "the newest version is 0"),
        (protocol.FinishIteration(1, True), "iteration 1 should end before"),
    ],
)
def test_what_cannot_be_done_is_refused(order, message, scenario):
    with pytest.raises(SimulationError, match=message):
        script(scenario, order)[1].run(3)


def test_pairs_of_a_fragment_that_is_not_generated_are_refused(scenario):
    orders = protocol.ComputeAdvantages(0, (0,)), protocol.Train(PACK, 0, "trainer-0")
    with pytest.raises(SimulationError, match="is not generated, or lost"):
        script(scenario, *orders)[1].run(3)


def test_a_lost_device_answers_nothing(scenario):
    controller, simulation = script(
        scenario, GENERATE, protocol.Pause(alone(FRAGMENT), "rollout-0")
    )
    simulation.lose(0.5, "rollout-0")
    with pytest.raises(SimulationError, match=r"stalled at 0\.5 s"):
        simulation.run(3)
    assert controller.events[-1] == protocol.DevicesLost(("rollout-0",))


def test_a_paused_fragment_is_lost_with_its_device(scenario):
    orders = GENERATE, protocol.Pause(alone(FRAGMENT), "rollout-0")
    controller, simulation = script(scenario, *orders)
    simulation.lose(1.5, "rollout-0")
    resume = protocol.Generate(alone(FRAGMENT), 1, 3, 0, "trainer-0")
    simulation.join(2.0, protocol.Device("rollout-1", frozenset({"rollout"}), "default"))
    handle = controller.handle
    joined = protocol.DeviceJoined
    controller.handle = lambda e: handle(e) + ([resume] if isinstance(e, joined) else [])
    with pytest.raises(SimulationError, match="does not follow what was denoised: None"):
        simulation.run(3)
    assert protocol.BatchPaused(alone(FRAGMENT), 1) in controller.events


def test_simulate_takes_what_a_run_has(scenario):
    report = simulate(
        scenario.cluster(1),
        scenario.workload,
        Schedule(LAYOUTS["tsp"]),
        scenario.costs(1),
        trained_steps=(2,),
        num_iterations=2,
    )
    assert report.seconds == 21.75


@pytest.mark.parametrize("layout", ["colocated", "colocated-strong", "tcss", "elastic"])
def test_one_device_that_may_do_both_does_all(layout, scenario):
    report = simulate(
        [protocol.Device("gpu-0", frozenset({"rollout", "trainer"}), "default")],
        scenario.workload,
        Schedule(LAYOUTS[layout], max_stale_share=0.5 if layout == "tcss" else 0.0),
        scenario.costs(1),
        trained_steps=(2,),
        num_iterations=4,
    )
    assert len(report.iteration_ends) == 4


@pytest.mark.parametrize("layout", ["tsp", "tag", "tcss", "elastic"])
@pytest.mark.parametrize("lost", ["rollout-1", "trainer-0", "trainer-1"])
@pytest.mark.parametrize("time", [0.5, 9.0, 17.3, 60.0])
def test_a_job_goes_on_without_a_lost_device_and_with_a_new_one(layout, lost, time, scenario):
    cluster = scenario.model_copy(update={"devices": 5, "prompts": 8})
    options = {"trained_steps": (0,), "num_iterations": 4, "jitter": 0.1}
    share = 0.5 if layout == "tcss" else 0.0
    schedule = Schedule(LAYOUTS[layout], max_stale_share=share, copies_state=True)
    report = simulate(
        cluster.cluster(3),
        cluster.workload,
        schedule,
        cluster.costs(3),
        **options,
        losses=[(time, lost)],
        joins=[(time + 10, protocol.Device("late", frozenset({"rollout"}), "default"))],
    )
    assert len(report.iteration_ends) == 4
    assert max(span.ended for span in report.spans if span.device == lost) <= time
    assert min(span.started for span in report.spans if span.device == "late") >= time + 10
    assert any(span.kind == "denoise" for span in report.spans if span.device == "late")
    assert report.max_staleness == (layout == "tcss")


def test_nobody_turns_to_pairs_that_others_have(scenario):
    """It turned back at once, and to them again, for as long as a slow trainer needs."""
    kinds = {"fast": {"count": 3}, "slow": {"count": 1, "pack": 1000.0, "pair": 1000.0}}
    mixed = Scenario.model_validate(scenario.model_dump() | {"devices": 4, "kinds": kinds})
    devices = [replace(own, roles=frozenset({"rollout"})) for own in mixed.cluster(None)[:3]]
    trainer = replace(mixed.cluster(None)[3], roles=frozenset({"trainer"}))
    report = simulate(
        [*devices, trainer],
        mixed.workload,
        Schedule(LAYOUTS["elastic"], helpers=1, assistants=3),
        mixed.costs(3),
        trained_steps=(0,),
        num_iterations=2,
    )
    assert sum(span.kind == "switch" for span in report.spans) < 20


@pytest.mark.parametrize("split", [2, None])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_trainers_are_lost_while_an_update_is_made(split, place, scenario):
    """As their sums are brought together, which is void, or when the standby has the state."""
    cluster = scenario.model_copy(update={"devices": 5, "gradient_sum": 3.0, "push": 5.0})
    devices = cluster.cluster(split)
    lost = [device.name for device in devices if "trainer" in device.roles][place]
    for time in range(40):
        report = simulate(
            devices,
            cluster.workload,
            Schedule(LAYOUTS["tsp" if split else "colocated"], copies_state=True),
            cluster.costs(split),
            trained_steps=(0,),
            num_iterations=3,
            losses=[(time + 0.25, lost)],
        )
        assert len(report.iteration_ends) == 3


@pytest.mark.parametrize("layout", ["colocated", "gap", "tsp", "tag", "tcss", "elastic"])
@pytest.mark.parametrize("name", [0, -1])
@pytest.mark.parametrize("time", [0.5, 9.0, 17.3])
def test_a_device_that_leaves_is_gone_within_three_iterations(layout, name, time, scenario):
    """The first device, or the last; a fragment may be generated in parts, and none of it again."""
    cluster = scenario.model_copy(update={"devices": 5, "prompts": 8})
    share = 0.5 if layout == "tcss" else 0.0
    split = None if layout == "colocated" else 3
    devices = cluster.cluster(split)
    leaving = devices[name].name
    report = simulate(
        devices,
        cluster.workload,
        Schedule(LAYOUTS[layout], max_stale_share=share),
        cluster.costs(split),
        trained_steps=(0,),
        num_iterations=6,
        jitter=0.1,
        leaves=[(time, leaving)],
    )
    ends = [end for end in report.iteration_ends if end > time]
    assert max(span.ended for span in report.spans if span.device == leaving) <= ends[2]
    steps = [
        (span.iteration, span.group, span.fragment, step)
        for span in report.spans
        if span.kind == "denoise"
        for step in range(span.first_step, span.end_step)
    ]
    workload = cluster.workload
    assert len(steps) == len(set(steps)) == 6 * workload.num_fragments * workload.num_steps


def test_iterations_that_end_together_take_their_share_of_the_time():
    """As where one device gets only the last of several versions."""
    schedule = Schedule(LAYOUTS["disaggregated"])
    report = make_report([6.0, 6.0, 6.0], [], ["a"], Staleness(), schedule)
    assert report.seconds == 2.0
    assert report.busy_share == {"a": 0.0}
