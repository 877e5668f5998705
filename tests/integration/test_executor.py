"""Instructions on real workers: pause and resume, packs that do not fit, prompts encoded once."""

from random import Random

import numpy as np
import pytest
import torch
from prefect import flow

from digen_core.config.run import RunConfig
from digen_core.control import protocol as p
from digen_core.data.prompts import Prompt
from support.batches import alone
from support.runs import merged

pytestmark = pytest.mark.slow

NUM_STEPS = 5


@pytest.fixture
def in_a_run(tree, cluster_address, prefect_backend):
    """Return a function that calls a body with the context of a run that is ready."""
    from flows.launch import open_run
    from flows.prepare import prepare
    from flows.runtime.context import context_of
    from flows.runtime.subflows import on_cluster
    from tasks.runner.completions import Completions

    changes = {
        "rollout.num_steps": NUM_STEPS,
        "cluster.scheduler_address": cluster_address(2, 2),
    }

    def run(body, **schedule):
        config = RunConfig.model_validate(merged(tree, {**changes, "schedule": schedule}))

        @flow(validate_parameters=False)
        def inside(run_id):
            run = context_of(run_id)
            with Completions(run.inbox):
                return body(run)

        @flow(validate_parameters=False)
        def outside():
            with open_run(config) as run, on_cluster(run, prepare):
                return on_cluster(run, inside)

        return outside()

    return run


class Driver:
    """An executor with one open iteration, without a controller."""

    def __init__(self, run, index=0):
        from flows.runtime.executor import Executor

        self.run = run
        self.executor = Executor(run)
        self.open(index)
        self.fragment = p.Fragment(index, 0, 0, 0, 4, num_steps=NUM_STEPS)

    def open(self, index):
        from flows.runtime.iterations.iteration import round_of
        from flows.runtime.iterations.open_iteration import OpenIteration
        from flows.runtime.iterations.recorder import IterationRecorder

        round_ = round_of(self.run.config, self.run.prompts, index)
        self.iteration = OpenIteration(round_, IterationRecorder(self.run, round_), 1)
        self.executor.open(self.iteration)

    def wait(self):
        """Return the event of the next completion, or None."""
        (event,) = self.executor.events_of(self.run.inbox.get(timeout=60)) or (None,)
        return None if isinstance(event, p.BatchLate) else event  # on a busy machine

    def do(self, instruction):
        """Carry out an instruction to its event."""
        self.executor.submit(instruction)
        while (event := self.wait()) is None:
            pass
        return event

    def generate(self, random=None):
        """Generate the fragment, paused at random places if asked; return all it recorded."""
        devices = ["rollout-0", "rollout-1"]
        event = p.BatchPaused(alone(self.fragment), 0)
        num_pauses = 0
        while isinstance(event, p.BatchPaused):
            device = devices[num_pauses % 2]
            self.executor.submit(
                p.Generate(alone(self.fragment), event.next_step, NUM_STEPS, 0, device)
            )
            event = None
            for _ in range(random.randrange(3) if random else NUM_STEPS + 1):
                if isinstance(event := self.wait(), p.BatchGenerated):
                    break
            if not isinstance(event, p.BatchGenerated):
                event = self.do(p.Pause(alone(self.fragment), device))
                num_pauses += 1
        assert event == p.BatchGenerated(alone(self.fragment))
        segments = [future.result()[0] for _, future in self.iteration.segments[self.fragment]]
        assert [segment.first_step for segment in segments] == list(range(NUM_STEPS))
        logprobs = {step: v for segment in segments for step, v in segment.logprobs.items()}
        return np.stack([segment.latents for segment in segments]), logprobs, num_pauses


@pytest.mark.ci
def test_a_paused_fragment_goes_on_elsewhere_as_if_nothing_had_been(in_a_run):
    def body(run):
        whole, logprobs, num_pauses = Driver(run).generate()
        assert num_pauses == 0
        paused = 0
        for seed in range(4):
            latents, found, num_pauses = Driver(run).generate(Random(seed))
            np.testing.assert_array_equal(latents, whole)
            assert found.keys() == logprobs.keys() == set(range(4))
            for step, values in logprobs.items():
                np.testing.assert_array_equal(found[step], values)
            paused += num_pauses
        return paused

    assert in_a_run(body) >= 4


@pytest.mark.ci
def test_at_most_two_tasks_of_a_fragment_are_submitted(in_a_run):
    def body(run):
        it = Driver(run)
        it.executor.submit(p.Generate(alone(it.fragment), 0, NUM_STEPS, 0, "rollout-0"))
        counts = [it.executor.num_running]
        while it.executor.num_running:
            event = it.wait()
            counts.append(it.executor.num_running)
        return counts, event

    counts, event = in_a_run(body)
    # encode and two; after each of the first steps another
    assert counts == [3, 2, 2, 2, 2, 1, 0]
    assert event == p.BatchGenerated(alone(p.Fragment(0, 0, 0, 0, 4)))


def test_a_prompt_that_comes_again_is_not_encoded_again(in_a_run):
    def body(run):
        run.prompts[:] = [Prompt("a red circle")]  # of every group and iteration
        it = Driver(run)
        it.executor.encode_ahead(it.iteration)
        it.open(1)
        it.executor.encode_ahead(it.iteration)
        return it.executor.num_running

    assert in_a_run(body) == 1  # both groups, in one task


@pytest.mark.ci
def test_a_condition_that_is_gone_is_not_made_anew_by_a_device_without_the_encoder(in_a_run):
    """One device had embedded the prompt, another one has generated of it, a third one trains."""

    def body(run):
        it = Driver(run)
        it.executor.encode_ahead(it.iteration)  # group 0 on rollout-0
        it.executor.submit(p.Generate(alone(it.fragment), 0, NUM_STEPS, 0, "rollout-1"))
        while it.executor.num_running:
            event = it.wait()
        assert event == p.BatchGenerated(alone(it.fragment))
        it.do(p.Score(it.fragment, "rollout-1"))
        it.executor.compute_advantages(p.ComputeAdvantages(0, (0,)))
        run.fleet.left("rollout-0")
        it.executor.forget(["rollout-0"])
        pack = p.Pack(0, 0, (p.PairBlock(it.fragment, 1, 0, 4),))
        assert it.do(p.Train(pack, 0, "trainer-0")) == p.PackTrained(pack)
        return [span.device for span in it.iteration.recorder._spans if span.kind == "encode"]

    assert sorted(in_a_run(body, layout="tsp")) == ["rollout-0", "rollout-1", "rollout-1"]


def limit_rows(run_id: str, limit: int | None) -> None:
    """Make a worker's policy run out of memory above some rows."""
    from tasks.worker.engine import _engines

    policy = _engines[run_id].policy
    velocity = type(policy).velocity

    def limited(x, *arguments, **options):
        if limit is not None and len(x) > limit:
            raise torch.OutOfMemoryError(f"{len(x)} rows")
        return velocity(policy, x, *arguments, **options)

    policy.velocity = limited


@pytest.mark.ci
def test_a_pack_that_does_not_fit_adds_nothing(in_a_run):
    def body(run):
        it = Driver(run)
        it.generate()
        assert it.do(p.Score(it.fragment, "rollout-0")) == p.FragmentScored(it.fragment)
        event = it.executor.compute_advantages(p.ComputeAdvantages(0, (0,)))
        assert event == p.AdvantagesComputed(0, (0,))

        def pack(index, first_row, num_rows):
            return p.Pack(0, index, (p.PairBlock(it.fragment, 1, first_row, num_rows),))

        def train(device, packs):
            events = [type(it.do(p.Train(each, 0, device))).__name__ for each in packs]
            assert it.do(p.Reduce(0, (device,), device)) == p.GradientReduced(0)
            return events, it.iteration.total.result()

        halves = [pack(1, 0, 2), pack(2, 2, 2)]
        run.client.run(limit_rows, run.run_id, 2, workers=[run.fleet.addresses["trainer-0"]])
        limited = train("trainer-0", [pack(0, 0, 4), halves[0], pack(3, 0, 3), halves[1]])
        spans = [own.num_items for own in it.iteration.recorder._spans if own.kind == "train"]
        run.client.run(limit_rows, run.run_id, None, workers=[run.fleet.addresses["trainer-0"]])
        return spans, limited, train("trainer-1", halves)

    spans, (events, limited), (_, free) = in_a_run(body)
    assert spans == [0, 2, 0, 2]  # what did not fit is no work done
    assert events == ["PackTooLarge", "PackTrained", "PackTooLarge", "PackTrained"]
    assert limited.metrics == free.metrics
    assert limited.metrics.num_pairs == 4
    assert limited.gradient.keys() == free.gradient.keys()
    for name, value in free.gradient.items():
        np.testing.assert_array_equal(limited.gradient[name], value)


@pytest.mark.ci
def test_samples_that_do_not_fit_are_denoised_in_parts(in_a_run):
    """With the same numbers, and it is said once of the device."""
    from flows.runtime.observers import watching
    from support.runs import Watch

    def body(run):
        whole, logprobs, _ = Driver(run).generate()
        run.client.run(limit_rows, run.run_id, 3)
        limited, found, _ = Driver(run).generate(Random(1))
        assert found.keys() == logprobs.keys()
        for step, values in logprobs.items():
            np.testing.assert_allclose(found[step], values, rtol=1e-10)
        return whole, limited

    watch = Watch()
    with watching(watch):
        whole, limited = in_a_run(body)
    np.testing.assert_allclose(limited, whole, rtol=0, atol=1e-10)
    said = [text for text in watch.warnings if "to denoise 4 samples at once" in text]
    assert said
    assert len(said) == len({text.split()[0] for text in said})


def test_where_one_sample_does_not_fit_the_run_ends_with_what_to_change(in_a_run):
    from digen_core.errors import UserError

    def body(run):
        run.client.run(limit_rows, run.run_id, 0)
        Driver(run).generate()

    with pytest.raises(UserError, match="rollout-0 has not enough memory to denoise one sample"):
        in_a_run(body)


@pytest.mark.ci
def test_where_one_pair_does_not_fit_the_run_ends_with_what_to_change(in_a_run):
    from digen_core.errors import UserError

    def body(run):
        it = scored(run)
        run.client.run(limit_rows, run.run_id, 0, workers=[run.fleet.addresses["trainer-0"]])
        it.do(p.Train(p.Pack(0, 0, (p.PairBlock(it.fragment, 1, 0, 1),)), 0, "trainer-0"))

    message = (
        "trainer-0 has not enough memory for the gradient of one pair .*gradient_checkpointing"
    )
    with pytest.raises(UserError, match=message):
        in_a_run(body)


def scored(run) -> Driver:
    """A fragment that may be trained."""
    it = Driver(run)
    it.generate()
    it.do(p.Score(it.fragment, "rollout-0"))
    it.executor.compute_advantages(p.ComputeAdvantages(0, (0,)))
    return it


def test_a_pack_that_is_trained_again_counts_once_whatever_the_memory(in_a_run):
    def body(run):
        it = scored(run)
        do = p.Train(p.Pack(0, 0, (p.PairBlock(it.fragment, 1, 0, 4),)), 0, "trainer-0")
        assert it.do(do) == p.PackTrained(do.pack)
        run.client.run(limit_rows, run.run_id, 0, workers=[run.fleet.addresses["trainer-0"]])
        assert it.do(do) == p.PackTrained(do.pack)
        assert it.do(p.Reduce(0, ("trainer-0",), "trainer-0")) == p.GradientReduced(0)
        return it.iteration.total.result().metrics.num_pairs

    assert in_a_run(body) == 4


@pytest.mark.ci
def test_nothing_is_heard_of_a_reduction_of_which_a_device_was_lost(in_a_run):
    """Whether it ends before or after the one that is made in its place."""

    def body(run):
        it = scored(run)
        it.do(p.Train(p.Pack(0, 0, (p.PairBlock(it.fragment, 1, 0, 2),)), 0, "trainer-0"))
        it.do(p.Train(p.Pack(0, 1, (p.PairBlock(it.fragment, 1, 2, 2),)), 0, "trainer-1"))
        it.executor.submit(p.Reduce(0, ("trainer-0", "trainer-1"), "trainer-0"))
        it.executor.forget(["trainer-1"])
        it.do(p.Train(p.Pack(0, 2, (p.PairBlock(it.fragment, 1, 2, 2),)), 0, "trainer-0"))
        it.executor.submit(p.Reduce(0, ("trainer-0",), "trainer-0"))
        events = [it.wait() for _ in range(it.executor.num_running)]
        return events, it.iteration.total.result().metrics.num_pairs

    events, num_pairs = in_a_run(body)
    assert [event for event in events if event] == [p.GradientReduced(0)]
    assert num_pairs == 4


def test_sums_are_dropped_when_the_update_is_made(in_a_run):
    """Of all weights, a device has no room for two."""

    def body(run):
        it = scored(run)
        it.do(p.Train(p.Pack(0, 0, (p.PairBlock(it.fragment, 1, 0, 4),)), 0, "trainer-0"))
        it.do(p.Reduce(0, ("trainer-0",), "trainer-0"))
        held = bool(it.iteration.sums), it.iteration.total is not None
        assert it.do(p.Step(0, 0, "trainer-0")) == p.Stepped(1)
        assert (bool(it.iteration.sums), run.progress.version) == (True, 0), "it may be lost"
        it.do(p.CopyState(1, "trainer-1", "trainer-0"))
        assert it.do(p.Push(1, "trainer-1", "trainer-0")) == p.VersionLoaded("trainer-1", 1)
        assert run.progress.version == 1
        return held, (bool(it.iteration.sums), it.iteration.total is not None)

    assert in_a_run(body) == ((True, True), (False, False))
