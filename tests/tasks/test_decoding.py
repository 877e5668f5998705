"""Which samples are decoded where rewards take latents, what these get, and what travels on."""

import numpy as np
import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt, SizedPrompt
from digen_core.records import SHOWN_SAMPLES
from digen_core.rewards.scoring import RewardError
from digen_core.transport.kept_inputs import read_inputs
from support.edits import source
from support.in_process import call, denoise_alone, score
from support.runs import merged, tree_of
from tasks.measure import measured_together
from tasks.reproduction import reproduce
from tasks.rollout import encode
from tasks.score import make_up_latents, score_group
from tasks.versions import publish, push_weights, start_state
from tasks.worker import engine as engine_module
from tasks.worker.engine import build_engine

LATENTS = {"smooth_rewards:calm": {"takes": "latents"}}
BOTH = {**LATENTS, "smooth_rewards:brightness": 1.0}
GROUPED = {"smooth_rewards:calm_among": {"takes": "latents", "sees": "groups"}}
PROMPT = "a red circle"
SIZE = 6  # of a group


class Device:
    """A device that generates, and how many samples each of its calls of the VAE had."""

    def __init__(self, config, folder, monkeypatch):
        self.config, self.folder, self.decoded = config, folder, []
        self.engine = build_engine("run", config, "both-0", frozenset({"rollout", "trainer"}))
        state, _ = call(start_state)
        call(push_weights, policy_version=call(publish, state=state)[0])
        self.policy, decode = self.engine.policy, self.engine.policy.decode
        monkeypatch.setattr(
            self.policy, "decode", lambda x: self.decoded.append(len(x)) or decode(x)
        )
        self.conditions, _ = call(encode, prompts=[SizedPrompt(Prompt(PROMPT), config.model.size)])

    def segment(self, group=0, index=0, first=0, count=SIZE):
        segment, _ = denoise_alone(
            Fragment(0, group, index, first, count, num_steps=3),
            PROMPT,
            (0, 1),
            steps=range(3),
            version=0,
            conditions=self.conditions,
            previous=None,
            run_dir=self.folder,
        )
        return segment

    def score(self, segment, prompt=None):
        return score(segment, prompt=prompt or Prompt(PROMPT), run_dir=self.folder)


@pytest.fixture
def device_of(tiny_flux, tmp_path, monkeypatch):
    """Return a function that makes a device of a run with some rewards."""
    monkeypatch.setattr(engine_module, "_engines", {})

    def make(rewards, **changes):
        settings = {"rewards": rewards, "rollout.group_size": SIZE, "rollout.fragment_size": SIZE}
        tree = merged(tree_of(tiny_flux, tmp_path), settings | changes)
        return Device(RunConfig.model_validate(tree), tmp_path, monkeypatch)

    return make


def expected_of(device, segment):
    """Scores by hand: of the tokens of FLUX, four numbers of each of its channels."""
    x = torch.from_numpy(segment.x).float().double()
    squares = x.unflatten(2, (-1, 4)).square().mean(dim=(1, 3))
    return -(squares @ torch.linspace(0.5, 1.5, squares.shape[1], dtype=torch.float64))


def test_what_nobody_looks_at_is_not_decoded(device_of):
    device = device_of(LATENTS)
    segment = device.segment(group=4)
    kept, scored = device.score(segment)
    assert device.decoded == []
    assert (kept, scored.pictures) == ({}, [])
    found = scored.rewards["smooth_rewards:calm/score"]
    np.testing.assert_allclose(found, expected_of(device, segment), rtol=1e-7)
    assert np.ptp(found) > 0.01


def test_what_is_shown_is_decoded_and_no_more(device_of):
    device = device_of(LATENTS)
    first, second = device.segment(), device.segment(index=1, first=2, count=4)
    _, scored = device.score(first)
    assert device.decoded == [SHOWN_SAMPLES]
    assert len(scored.pictures) == SHOWN_SAMPLES
    assert len(scored.rewards["reward"]) == SIZE
    assert device.score(second)[1].pictures == []
    assert device.decoded == [SHOWN_SAMPLES]


@pytest.mark.parametrize(
    ("rewards", "changes"), [(BOTH, {}), (LATENTS, {"tracking.keep_images": "all"})]
)
def test_all_are_decoded_where_they_are_judged_or_kept(rewards, changes, device_of, tmp_path):
    device = device_of(rewards, **changes)
    segment = device.segment(group=4)
    _, scored = device.score(segment)
    assert device.decoded == [SIZE]
    assert len([*tmp_path.rglob("*.png")]) == (SIZE if changes else 0)
    calm = scored.rewards["smooth_rewards:calm/score"]
    np.testing.assert_allclose(calm, expected_of(device, segment), rtol=1e-7)
    if rewards is BOTH:
        bright = scored.rewards["smooth_rewards:brightness/score"]
        np.testing.assert_allclose(scored.rewards["reward"], np.add(calm, bright), rtol=1e-7)


def test_others_are_sent_what_they_take(device_of):
    device = device_of({"smooth_rewards:brightness": 1.0, **GROUPED})
    whole, _ = device.score(device.segment(count=4))
    parts = [
        device.score(device.segment(index=place, first=2 * place, count=2))[0] for place in (0, 1)
    ]
    assert whole.keys() == {"latents"}
    assert whole["latents"].shape == (
        4,
        *device.policy.latents(torch.zeros(1, *device.policy.latent_shape)).shape[1:],
    )
    asked = {"pool": None, "size": device.config.model.size, "prompts": [Prompt(PROMPT)] * 4}
    asked["at"] = Fragment(0, 0, 2, 0, 4), device.folder
    one, two = (call(score_group, samples=own, **asked)[1].rewards for own in ([whole], parts))
    found = np.array(one["smooth_rewards:calm_among/score"])
    assert found.sum() == pytest.approx(2)  # win rates
    assert np.ptp(found) > 1e-3
    np.testing.assert_allclose(two["smooth_rewards:calm_among/score"], found, atol=1e-6)


def test_images_go_elsewhere_where_they_are_taken_there(device_of):
    rewards = {"smooth_rewards:brightness": {"sees": "groups"}, **LATENTS}
    device = device_of(rewards)
    kept, _ = device.score(device.segment(count=4))
    assert kept.keys() == {"images"}
    assert kept["images"].shape == (4, 3, 32, 32)


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_picture_that_is_nan_ends_the_run_or_is_black(policy, device_of, monkeypatch):
    device = device_of(LATENTS, **{"numerics.samples": policy})
    decode = device.policy.decode

    def broken(x):
        images = decode(x)
        images[1] = torch.nan
        return images

    monkeypatch.setattr(device.policy, "decode", broken)
    segment = device.segment()
    if policy == "fail":
        with pytest.raises(FloatingPointError, match=r"the pixels of sample 1 is NaN or infinite"):
            device.score(segment)
    else:
        _, scored = device.score(segment)
        assert scored.nonfinite == {}, "no reward looks at pixels"
        assert len(scored.pictures) == SHOWN_SAMPLES
        np.testing.assert_allclose(
            scored.rewards["reward"], expected_of(device, segment), rtol=1e-7
        )
    (kept,) = read_inputs(device.folder, 0)
    assert kept.kind == "decode"


def test_latents_that_a_reward_fails_on_are_kept_and_judged_again(device_of):
    device = device_of({"broken_rewards:not_a_number": {"takes": "latents"}})
    with pytest.raises(RewardError, match="returned nan for image 0 of 6"):
        device.score(device.segment(group=4))
    inputs = read_inputs(device.folder, 0)
    assert {*inputs[0].arrays} == {"latents"}
    (again,) = reproduce(device.folder, device.config, inputs)
    assert again.found == "reward 'broken_rewards:not_a_number' returned nan for image 0 of 6"


def test_source_images_stay_images(device_of):
    rewards = {"smooth_rewards:like_latents_of_source": {"takes": "latents"}}
    device = device_of(rewards)
    segment = device.segment(group=4)
    _, scored = device.score(segment, Prompt(PROMPT, images=(source(0),)))
    assert device.decoded == []
    ratio = np.array(scored.rewards["reward"]) / expected_of(device, segment).numpy()
    pixels = source(0).pixels(32, 32).astype(float) / 255
    bright = (pixels[..., 0] - pixels[..., 2] / 2).mean()
    np.testing.assert_allclose(ratio, 1 + bright, rtol=1e-5)


@pytest.mark.parametrize(("rewards", "is_free"), [(LATENTS, True), (BOTH, False)])
def test_decoding_costs_nothing_where_nothing_is_decoded(rewards, is_free, device_of):
    device = device_of(rewards)
    rows = {name: torch.from_numpy(own) for name, own in device.conditions[PROMPT].items()}
    found = measured_together("run", rows, ["rollout"])
    assert (found.decode.fixed + found.decode.per_item == 0) is is_free
    assert (device.decoded == []) is is_free
    assert found.step.per_item + found.step.fixed > 0


def test_made_up_latents_have_the_shape_of_the_models(device_of):
    device = device_of(LATENTS)
    made, _ = call(make_up_latents)
    own = device.policy.latents(torch.zeros(2, *device.policy.latent_shape))
    assert (made.shape, made.dtype) == (own.shape, np.float32)
    assert 0.5 < made.std() < 1.5
