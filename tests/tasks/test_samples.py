"""The task that encodes samples from files: what it returns, numbers that it lacks, files gone."""

import numpy as np
import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.data.images import SourceImage
from digen_core.data.prompts import SizedPrompt, train_prompts
from digen_core.errors import UserError
from digen_core.transport.trajectories import read_segments
from support.given import NUM_SAMPLES, write_samples
from support.in_process import call
from support.runs import merged, tree_of
from tasks import denoising, measure
from tasks.rollout import encode
from tasks.samples import encode_samples
from tasks.versions import publish, push_weights, start_state
from tasks.worker import engine as engine_module
from tasks.worker.engine import build_engine

STEPS = 4
NFT = {"type": "diffusion_nft"}
DGPO = {"type": "dgpo", "num_levels": 2, "trained_fraction": 1.0}


@pytest.fixture
def device(tiny_flux, tmp_path, monkeypatch):
    """Return a function that loads a device: its engine, and a function that encodes a fragment."""
    monkeypatch.setattr(engine_module, "_engines", {})

    def load(**changes):
        settings = {**write_samples(tmp_path), "rollout.num_steps": STEPS, **changes}
        config = RunConfig.model_validate(merged(tree_of(tiny_flux, tmp_path), settings))
        engine = build_engine("run", config, "both-0", frozenset({"rollout", "trainer"}))
        state, _ = call(start_state)
        call(push_weights, policy_version=call(publish, state=state)[0])
        prompt = SizedPrompt(train_prompts(config)[0], config.model.size)

        def run(first=0, count=NUM_SAMPLES):
            (segment,), facts = call(
                encode_samples,
                fragment=Fragment(0, 0, 0, first, count, num_steps=STEPS),
                steps=range(STEPS),
                version=0,
                conditions=[call(encode, prompts=[prompt.shown])[0]],
                key=prompt.key,
                images=prompt.prompt.samples[first : first + count],
                run_dir=tmp_path,
            )
            return segment, facts.sampled[0], facts

        return engine, prompt.prompt, run

    return load


def test_a_segment_holds_the_clean_latents_of_the_images(device):
    engine, prompt, run = device(algorithm=NFT)
    segment, facts, _ = run()
    clean = engine.policy.encode_samples(prompt.samples).numpy()
    np.testing.assert_array_equal(segment.x, clean)
    np.testing.assert_array_equal(segment.before(STEPS - 1), clean)
    assert segment.covers(STEPS - 1)
    assert not segment.covers(STEPS - 2)
    assert (segment.logprobs, facts.logprobs, facts.step_values) == ({}, {}, {})
    assert (segment.sigmas[0], segment.sigmas[-1], len(segment.sigmas)) == (1.0, 0.0, STEPS + 1)
    part, *_ = run(1, 2)
    np.testing.assert_array_equal(part.x, clean[1:3])


def test_margins_are_asked_where_the_algorithm_needs_them(device):
    """Of the version that a group is given: of the base model itself they are 0."""
    _, _, run = device(algorithm=DGPO)
    _, facts, _ = run()
    assert len(facts.step_values) == 2
    assert all(own == [0.0] * NUM_SAMPLES for own in facts.step_values.values())


def test_trajectories_that_are_kept_hold_what_training_needs(device, tmp_path):
    _, _, run = device(algorithm=NFT, **{"tracking.keep_trajectories": 1})
    segment, *_ = run()
    (kept,) = read_segments(tmp_path, 0)
    np.testing.assert_array_equal(kept.x, segment.x)
    assert kept.covers(STEPS - 1)


@pytest.mark.parametrize("algorithm", [NFT, DGPO], ids=["nft", "dgpo"])
def test_an_image_that_becomes_nan_ends_the_run_or_drops_its_group(algorithm, device, monkeypatch):
    engine, _, run = device(algorithm=algorithm)
    encode_as_ever = engine.policy.encode_samples

    def with_nan(images):
        x = encode_as_ever(images)
        x[2] = torch.nan
        return x

    monkeypatch.setattr(engine.policy, "encode_samples", with_nan)
    message = r"iteration 1, group 0: the latent of the image of sample 2 is NaN or infinite"
    with pytest.raises(FloatingPointError, match=message):
        run()
    numerics = engine.config.numerics.model_copy(update={"samples": "drop"})
    monkeypatch.setattr(engine, "config", engine.config.model_copy(update={"numerics": numerics}))
    segment, facts, _ = run()
    assert facts.nonfinite == {2: "latent of the image"}
    assert not segment.x[2].any()
    assert segment.x[1].any()


def test_margins_that_do_not_fit_are_taken_of_fewer_samples(device, monkeypatch):
    _, _, run = device(algorithm=DGPO)
    taken, with_answers = [], denoising.with_answers

    def of_two_at_most(last, *arguments, **settings):
        (part,) = settings["rows"].parts
        taken.append(part.samples)
        if len(part) > 2:
            raise torch.OutOfMemoryError("there is no more")
        return with_answers(last, *arguments, **settings)

    monkeypatch.setattr(denoising, "with_answers", of_two_at_most)
    _, sampled, facts = run()
    assert taken == [range(4), range(2), range(2, 4)]
    assert facts.num_parts == 2
    assert [len(own) for own in sampled.step_values.values()] == [NUM_SAMPLES] * 2


def test_an_image_that_does_not_fit_is_told(device, monkeypatch):
    engine, _, run = device(algorithm=NFT)

    def encode_none(images):
        raise torch.OutOfMemoryError("there is no more")

    monkeypatch.setattr(engine.policy, "encode_samples", encode_none)
    with pytest.raises(UserError, match=r"both-0 has not enough memory to encode one image"):
        run()


def test_a_file_that_changes_is_told(device, tmp_path):
    _, prompt, _ = device(algorithm=NFT)
    named = next(image for image in prompt.samples if image.path is not None)
    named.path.write_bytes(SourceImage.content(prompt.samples[0]))
    with pytest.raises(UserError, match=r"the image .*0-1\.png has changed since the run began"):
        named.shrunk(16, 16)


@pytest.mark.parametrize(("algorithm", "velocities"), [(NFT, 0.0), (DGPO, 2 * 2 / STEPS)])
def test_a_step_costs_its_share_of_what_takes_its_place(algorithm, velocities, device, monkeypatch):
    """Of the velocities of margins, and of encoding: 1 s, and 2 s, each time by hand."""
    engine, _, _ = device(algorithm=algorithm)
    assert engine.config.velocities_per_step == velocities
    seconds = {"step": 1.0, "encode": 2.0}
    line = measure.Linear
    monkeypatch.setattr(
        measure, "_line", lambda work, largest: line(per_item=seconds[work.__name__])
    )
    work = measure._Work(engine.policy, engine.config, {})
    found = measure._step(work, engine.config, engine.gang)
    assert found(1) == pytest.approx(velocities * 1.0 + 2.0 / STEPS)
    monkeypatch.undo()
    work.encode(3)
