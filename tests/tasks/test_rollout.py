"""Batches that a device denoises: in parts where they do not fit, and of several groups."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt, SizedPrompt
from digen_core.rollout.nonfinite import Finite
from digen_core.rollout.sampling import Sampling
from digen_core.transport.kept_inputs import read_inputs
from digen_core.transport.segment import Segment
from support.families import (
    FAMILIES,
    HEIGHT,
    OFTEN,
    TOKENS,
    WIDTH,
    family_of,
    frames_of,
    tolerance_of,
)
from support.in_process import call, denoise_alone
from support.runs import merged, tree_of
from tasks import denoising
from tasks.reproduction import reproduce
from tasks.rollout import denoise_steps, encode
from tasks.versions import publish, push_weights, start_state
from tasks.worker import engine as engine_module
from tasks.worker.engine import build_engine

STEPS = 4
PROMPT = "a red circle"
CHANGES = {
    "rollout.num_steps": STEPS,
    "algorithm": {"type": "dgpo", "num_levels": 2, "trained_fraction": 1.0},
}


@pytest.fixture
def denoised(tiny_flux, tmp_path, monkeypatch):
    """Return a function that generates samples."""
    monkeypatch.setattr(engine_module, "_engines", {})
    config = RunConfig.model_validate(merged(tree_of(tiny_flux, tmp_path), CHANGES))
    build_engine("run", config, "both-0", frozenset({"rollout", "trainer"}))
    state, _ = call(start_state)
    call(push_weights, policy_version=call(publish, state=state)[0])
    return lambda: denoise_alone(
        Fragment(0, 0, 0, 0, 4, num_steps=STEPS),
        PROMPT,
        (),
        steps=range(STEPS),
        version=0,
        conditions=call(encode, prompts=[SizedPrompt(Prompt(PROMPT), config.model.size)])[0],
        previous=None,
        run_dir=tmp_path,
    )


def test_margins_that_do_not_fit_are_taken_of_fewer_samples(denoised, monkeypatch):
    whole, facts = denoised()
    taken, with_answers = [], denoising.with_answers

    def of_two_at_most(last, *arguments, **settings):
        (part,) = settings["rows"].parts
        taken.append(part.samples)
        if len(part) > 2:
            raise torch.OutOfMemoryError("there is no more")
        return with_answers(last, *arguments, **settings)

    monkeypatch.setattr(denoising, "with_answers", of_two_at_most)
    again, found = denoised()
    assert taken == [range(4), range(2), range(2, 4)]
    assert (facts.num_parts, found.num_parts) == (1, 2)
    np.testing.assert_allclose(again.latents, whole.latents, rtol=1e-9, atol=1e-12)
    (own,), (expected,) = found.sampled, facts.sampled
    assert own.step_values.keys() == expected.step_values.keys()
    for level, values in expected.step_values.items():
        np.testing.assert_allclose(own.step_values[level], values, rtol=1e-9, atol=1e-12)


TEXTS = ("red", "a red circle")
PARTS = [(0, 0, 0, 2), (0, 1, 2, 2), (1, 0, 0, 3)]  # group, index, first sample, samples


class Batches:
    """A device of any family that denoises fragments of two groups, together or alone."""

    def __init__(self, model, path, folder, **changes):
        tree = tree_of(path, folder)
        tree["model"] |= {
            "family": family_of(model), "max_sequence_length": TOKENS, "device": "cpu",
            "height": HEIGHT, "width": WIDTH, "num_frames": frames_of(family_of(model)),
        }  # fmt: skip
        tree["rollout"] |= {"num_steps": STEPS, "noise_level": 0.3}
        self.config = RunConfig.model_validate(merged(tree, changes))
        self.engine = build_engine("run", self.config, "both-0", frozenset({"rollout", "trainer"}))
        state, _ = call(start_state)
        call(push_weights, policy_version=call(publish, state=state)[0])
        self.keys = [SizedPrompt(Prompt(text), self.config.model.size) for text in TEXTS]
        self.conditions, _ = call(encode, prompts=self.keys)
        self.folder = folder
        self.fragments = [Fragment(0, *part, num_steps=STEPS) for part in PARTS]

    def denoise(self, fragments, steps=range(STEPS), previous=(), noisy=(0, 1)):
        return call(
            denoise_steps,
            batch=[Sampling(own, self.keys[own.group].key, noisy) for own in fragments],
            steps=steps,
            version=0,
            conditions=[self.conditions],
            previous=list(previous),
            run_dir=self.folder,
        )


@pytest.fixture
def batches(monkeypatch, tmp_path):
    """Return a function that loads a device."""
    monkeypatch.setattr(engine_module, "_engines", {})
    return lambda model, path, **changes: Batches(model, path, tmp_path, **changes)


def assert_equal(found: Segment, expected: Segment, tolerance: float) -> None:
    assert found.fragment == expected.fragment
    np.testing.assert_allclose(found.latents, expected.latents, rtol=0, atol=tolerance)
    assert found.logprobs.keys() == expected.logprobs.keys()
    for step, values in expected.logprobs.items():
        np.testing.assert_allclose(found.logprobs[step], values, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "model",
    [pytest.param(own, marks=() if own in OFTEN else pytest.mark.families) for own in FAMILIES],
)
def test_what_is_beside_a_sample_does_not_change_it(model, tiny_families, batches):
    it = batches(model, tiny_families[model])
    segments, facts = it.denoise(it.fragments)
    assert [len(own.logprobs[0]) for own in facts.sampled] == [2, 2, 3]
    for fragment, found, own in zip(it.fragments, segments, facts.sampled, strict=True):
        (alone,), expected = it.denoise([fragment])
        assert_equal(found, alone, tolerance_of(model))
        np.testing.assert_allclose(
            own.logprobs[1], expected.sampled[0].logprobs[1], atol=tolerance_of(model)
        )


def test_prompts_of_several_lengths_are_computed_apart(tiny_families, batches, monkeypatch):
    """As packs are, so that a sample is made by the kernels that replay it."""
    taken, denoise = [], denoising.denoise

    def noting(policy, x, *arguments, **settings):
        taken.append(len(x))
        return denoise(policy, x, *arguments, **settings)

    monkeypatch.setattr(denoising, "denoise", noting)
    it = batches("qwen_image", tiny_families["qwen_image"])
    _, facts = it.denoise(it.fragments)
    assert taken == [4, 3], "those of one prompt together"
    assert facts.num_apart == 2
    it = batches("flux", tiny_families["flux"])
    _, facts = it.denoise(it.fragments)
    assert taken[2:] == [7], "without a mask all are"
    assert facts.num_apart == 1


def test_a_batch_goes_on_with_others_than_it_began_with(tiny_families, batches):
    it = batches("flux", tiny_families["flux"])
    first, second, third = it.fragments
    whole, _ = it.denoise(it.fragments)
    two, _ = it.denoise([first, second], range(2))
    one, _ = it.denoise([third], range(2))
    ends, _ = it.denoise([second, third], range(2, STEPS), [two, one])
    last, _ = it.denoise([first], range(2, STEPS), [two])
    for found in (*ends, *last):
        (expected,) = [own for own in whole if own.fragment == found.fragment]
        np.testing.assert_allclose(found.latents, expected.latents[2:], rtol=0, atol=1e-12)
        assert not np.shares_memory(found.latents, ends[0].latents) or found is ends[0]


def test_of_a_batch_that_does_not_fit_rows_of_several_groups_are_taken(
    tiny_families, batches, monkeypatch
):
    it = batches("flux", tiny_families["flux"])
    whole, _ = it.denoise(it.fragments)
    denoise = denoising.denoise

    def of_three_at_most(policy, x, *arguments, **settings):
        if len(x) > 3:
            raise torch.OutOfMemoryError("there is no more")
        return denoise(policy, x, *arguments, **settings)

    monkeypatch.setattr(denoising, "denoise", of_three_at_most)
    again, facts = it.denoise(it.fragments)
    assert facts.num_parts == 3  # of 3, 3 and 1 of the 7
    for found, expected in zip(again, whole, strict=True):
        assert_equal(found, expected, 1e-12)


def test_what_is_nan_is_kept_from_its_own_step(tiny_families, batches, monkeypatch):
    """Of two groups one becomes NaN at step 1, another at step 3 of the same task."""
    it = batches("flux", tiny_families["flux"], **{"numerics.samples": "drop"})
    of, calls = Finite.of, []

    def at_two_steps(values):
        calls.append(values)
        found = of(values)
        found.table[{2: [0], 4: [5]}.get(len(calls), []), 0] = False
        return found

    monkeypatch.setattr(Finite, "of", at_two_steps)
    _, facts = it.denoise(it.fragments)
    assert [own.nonfinite.keys() for own in facts.sampled] == [{0}, set(), {1}]
    kept = {
        own.group: (own.about["step"], own.about["end_step"]) for own in read_inputs(it.folder, 0)
    }
    assert kept == {0: (1, 2), 1: (3, 4)}


@pytest.mark.parametrize(
    "algorithm",
    [
        {"type": "mix_grpo", "window_size": 2, "iterations_per_window": 1},
        {"type": "dgpo", "num_levels": 3, "trained_fraction": 1.0},
    ],
    ids=lambda own: own["type"],
)
def test_candidates_of_fewer_steps_than_are_trained(algorithm, tiny_families, batches):
    changes = {"algorithm": algorithm, "rollout.screening": {"candidates": 5, "num_steps": 1}}
    it = batches("flux", tiny_families["flux"], **{"rollout.group_size": 4, **changes})
    fragments = [replace(own, num_steps=1) for own in it.fragments]
    segments, facts = it.denoise(fragments, range(1), noisy=())
    assert (len(segments), facts.num_apart) == (3, 1)


def test_one_sample_that_is_nan_is_named_in_its_own_group(tiny_families, batches):
    it = batches("flux", tiny_families["flux"], **{"numerics.samples": "drop"})
    begun, _ = it.denoise(it.fragments, range(1))
    latents = begun[1].latents.copy()
    latents[-1, 1] = np.nan
    odd = (begun[0], replace(begun[1], latents=latents), begun[2])
    segments, facts = it.denoise(it.fragments, range(1, STEPS), [odd])
    assert [own.nonfinite.keys() for own in facts.sampled] == [set(), {3}, set()]
    sound, _ = it.denoise(it.fragments, range(1, STEPS), [begun])
    for place in (0, 2):
        assert_equal(segments[place], sound[place], 1e-12)
    failing = it.config.numerics.model_copy(update={"samples": "fail"})
    it.engine.config = it.config.model_copy(update={"numerics": failing})
    with pytest.raises(FloatingPointError, match=r"group 0: the .* of sample 3 is NaN"):
        it.denoise(it.fragments, range(1, STEPS), [odd])
    (kept,) = read_inputs(it.folder, 0)
    assert kept.about["fragment"]["index"] == 1
    (found,) = reproduce(it.folder, it.config, [kept])
    assert "sample 3" in found.found
