"""NaN and Inf in the bodies of tasks: what is kept of it, what ends the run, and what goes on."""

from dataclasses import replace

import numpy as np
import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt, SizedPrompt
from digen_core.errors import UserError
from digen_core.rewards.scoring import RewardError
from digen_core.transport.kept_inputs import MOST_KEPT, keep_input, read_inputs
from support.in_process import call, denoise_alone, score
from support.packs import make_packs
from support.runs import merged, tree_of
from tasks.reproduction import reproduce
from tasks.rollout import encode
from tasks.train import reduce, train_pack
from tasks.versions import publish, push_weights, start_state, step
from tasks.worker import engine as engine_module
from tasks.worker.engine import build_engine

PROMPT = "a red circle"
STEPS = 3
FRAGMENT = Fragment(1, 0, 0, 0, 4, num_steps=STEPS)


@pytest.fixture(autouse=True)
def no_engines(monkeypatch):
    """No engine of another test."""
    monkeypatch.setattr(engine_module, "_engines", {})


@pytest.fixture
def config_of(tiny_flux, tmp_path):
    """Return a function that makes the config of a run with some settings."""
    tree = tree_of(tiny_flux, tmp_path)
    return lambda **changes: RunConfig.model_validate(merged(tree, changes))


class Device:
    """A device that holds version 0, and what it makes of a fragment."""

    def __init__(self, config, folder):
        self.config, self.folder = config, folder
        self.engine = build_engine("run", config, "both-0", frozenset({"rollout", "trainer"}))
        self.state, _ = call(start_state)
        call(push_weights, policy_version=call(publish, state=self.state)[0])
        self.conditions, _ = call(encode, prompts=[SizedPrompt(Prompt(PROMPT), config.model.size)])

    def denoise(self, steps=range(STEPS), previous=None, noisy_steps=(0, 1)):
        return denoise_alone(
            FRAGMENT,
            PROMPT,
            noisy_steps,
            steps=steps,
            version=0,
            conditions=self.conditions,
            previous=previous,
            run_dir=self.folder,
        )

    def score(self, segment):
        return score(segment, prompt=Prompt(PROMPT), run_dir=self.folder)

    def train(self, segment, advantages):
        (pack,) = make_packs([FRAGMENT], (0, 1), iteration=FRAGMENT.iteration, pack_size=8)
        total, _ = call(
            train_pack,
            pack=pack,
            version=0,
            segments=[(segment,)],
            conditions=[self.conditions],
            keys={0: PROMPT},
            advantages={0: np.array(advantages)},
            previous=None,
            trained_from=0,
            run_dir=self.folder,
        )
        return call(reduce, own=total)[0]

    def reproduced(self):
        """What is found when it is done again."""
        inputs = read_inputs(self.folder, FRAGMENT.iteration)
        return [
            (one.kept.kind, one.kept.found, one.found, one.module)
            for one in reproduce(self.folder, self.config, inputs)
        ]


def with_nan(segment, sample, place=-1):
    """The same latents, but for a sample that is NaN before a step."""
    latents = segment.latents.copy()
    latents[place, sample] = np.nan
    return replace(segment, latents=latents)


SAMPLE = "iteration 2, group 0: the {} of sample 2 is NaN or infinite; check dtype and weights"


def test_a_latent_that_is_nan_ends_the_run_and_its_input_is_kept(config_of, tmp_path):
    device = Device(config_of(), tmp_path)
    first, _ = device.denoise(range(1))
    message = r"iteration 2, .* latent at step 1 .* digen replay .* 2 --nonfinite$"
    with pytest.raises(FloatingPointError, match=message):
        device.denoise(range(1, 3), with_nan(first, 2))
    ((kind, before, again, module),) = device.reproduced()
    sigma = float(device.engine.policy.sigmas(STEPS)[1])
    assert (kind, before) == ("denoise", SAMPLE.format(f"latent at step 1 (sigma {sigma:.4f})"))
    assert again == before
    assert module.startswith("x_embedder"), "the first to see the latents"


def test_a_step_of_second_order_is_done_again_as_its_task_did_it(config_of, tmp_path):
    """From the task's first step on, and from what the task before it predicted."""
    noiseless = {"algorithm": {"type": "diffusion_nft"}, "rollout.solver": "dpmpp_2m"}
    device = Device(config_of(**noiseless), tmp_path)
    whole, _ = device.denoise(noisy_steps=())
    assert whole.clean is None, "nothing goes on from it"
    first, _ = device.denoise(range(1), noisy_steps=())
    second, _ = device.denoise(range(1, 2), first, noisy_steps=())
    np.testing.assert_array_equal(second.latents[-1], whole.latents[2])
    third, _ = device.denoise(range(2, 3), second, noisy_steps=())
    np.testing.assert_array_equal(third.latents[-1], whole.latents[3])
    clean = first.clean.copy()
    clean[2] = np.inf
    with pytest.raises(FloatingPointError, match="latent at step 1"):
        device.denoise(range(1, 3), replace(first, clean=clean), noisy_steps=())
    ((kind, before, again, _),) = device.reproduced()
    sigma = float(device.engine.policy.sigmas(STEPS)[1])
    assert (kind, before) == ("denoise", SAMPLE.format(f"latent at step 1 (sigma {sigma:.4f})"))
    assert again == before


def test_a_sample_whose_group_is_dropped_goes_on_with_zeros(config_of, tmp_path):
    device = Device(config_of(**{"numerics.samples": "drop"}), tmp_path)
    sound, _ = device.denoise()
    first, _ = device.denoise(range(1))
    segment, facts = device.denoise(range(1, 3), with_nan(first, 2))
    assert facts.sampled[0].nonfinite.keys() == {2}
    assert np.isfinite(segment.latents[1:]).all()
    others = [0, 1, 3]
    np.testing.assert_array_equal(segment.latents[1:, others], sound.latents[2:, others])
    assert facts.sampled[0].logprobs[1][2] == 0
    np.testing.assert_array_equal(segment.logprobs[1][others], sound.logprobs[1][others])
    _, scored = device.score(segment)
    assert not scored.nonfinite


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_pixels_that_are_nan(config_of, tmp_path, policy):
    device = Device(config_of(**{"numerics.samples": policy}), tmp_path)
    segment, _ = device.denoise()
    _, sound = device.score(segment)
    if policy == "fail":
        with pytest.raises(FloatingPointError, match=r"the pixels of sample 2 is NaN"):
            device.score(with_nan(segment, 2))
    else:
        _, scored = device.score(with_nan(segment, 2))
        assert scored.nonfinite == {2: "pixels"}
        rewards = np.array(scored.rewards["reward"])
        assert rewards[2] == 0, "a black picture"
        assert rewards[[0, 1, 3]].tolist() == np.array(sound.rewards["reward"])[[0, 1, 3]].tolist()
    ((kind, before, again, module),) = device.reproduced()
    assert (kind, before) == ("decode", SAMPLE.format("pixels"))
    assert again == before
    assert module.startswith(("decoder", "post_quant"))


@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_samples_that_a_reward_gives_no_number_are_kept(config_of, tmp_path, policy):
    rewards = {"smooth_rewards:not_a_number": {"on_failure": policy}}
    device = Device(config_of(rewards=rewards), tmp_path)
    segment, _ = device.denoise()
    if policy == "fail":
        with pytest.raises(RewardError, match="returned nan for image 1 of 4"):
            device.score(segment)
    else:
        _, scored = device.score(segment)
        assert scored.rewards["smooth_rewards:not_a_number/failed"] == [0, 1, 0, 0]
    ((kind, _, again, module),) = device.reproduced()
    assert (kind, module) == ("score", "")
    assert again == "reward 'smooth_rewards:not_a_number' returned nan for image 1 of 4"


def test_a_reward_whose_failure_is_neutral_keeps_nothing(config_of, tmp_path):
    rewards = {"smooth_rewards:not_a_number": {"on_failure": "neutral"}}
    device = Device(config_of(rewards=rewards), tmp_path)
    device.score(device.denoise()[0])
    with pytest.raises(UserError, match=r"keeps nothing of iteration 2 .* nor of any other"):
        read_inputs(tmp_path, 1)


@pytest.mark.parametrize("advantage", [np.nan, -np.inf])
def test_an_update_that_is_not_finite_is_skipped(config_of, tmp_path, advantage):
    found = "the loss of 8 pairs is NaN or infinite"
    device = Device(config_of(**{"numerics.updates": "skip"}), tmp_path)
    segment, _ = device.denoise()
    total = device.train(segment, [1.0, advantage, -1.0, 0.5])
    state, update = call(step, state=device.state, total=total, trained_from=0, is_last=True)
    assert state is device.state
    assert (update.version, update.hash) == (0, state.weights_hash)
    assert update.skipped.startswith(found)
    assert update.metrics == {}
    assert call(publish, state=state)[1].hash == call(publish, state=device.state)[1].hash
    ((kind, before, again, _),) = device.reproduced()
    assert kind == "train"
    assert before.startswith(f"iteration 2, pack 0: {found}")
    assert again == update.skipped


def test_a_first_pack_that_is_not_finite_is_not_compared_to_one_without_cuts(
    config_of, tmp_path, monkeypatch
):
    monkeypatch.setitem(globals(), "FRAGMENT", replace(FRAGMENT, iteration=0))
    settings = {"numerics.updates": "skip", "model.cuts": [{"block": 1}]}
    device = Device(config_of(**settings), tmp_path)
    total = device.train(device.denoise()[0], [0.5, -0.5, np.nan, 0.0])
    assert total.metrics.nonfinite.startswith("the loss of 8 pairs")
    assert len(device.reproduced()) == 1


def test_an_update_that_is_not_finite_ends_the_run(config_of, tmp_path):
    device = Device(config_of(), tmp_path)
    segment, _ = device.denoise()
    message = r"iteration 2, pack 0: the loss of 8 pairs .* digen replay .* 2 --nonfinite$"
    with pytest.raises(FloatingPointError, match=message):
        device.train(segment, [1.0, np.inf, -1.0, 0.5])


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_sum_of_finite_gradients_may_overflow(config_of, tmp_path, policy):
    device = Device(config_of(**{"numerics.updates": policy}), tmp_path)
    total = device.train(device.denoise()[0], [1.0, 0.0, -1.0, 0.5])
    for value in total.gradient.values():
        value.fill_(1e300)
    if policy == "fail":
        with pytest.raises(FloatingPointError, match="the gradient's norm is inf at version 0"):
            call(step, state=device.state, total=total, trained_from=0, is_last=True)
    else:
        state, update = call(step, state=device.state, total=total, trained_from=0, is_last=True)
        assert state is device.state
        assert update.skipped == "the norm of the gradient is NaN or infinite"


def test_of_a_run_only_the_first_inputs_are_kept(config_of, tmp_path):
    device = Device(config_of(**{"numerics.samples": "drop"}), tmp_path)
    segment, _ = device.denoise()
    device.score(with_nan(segment, 2))
    (kept,) = read_inputs(tmp_path, 1)
    for number in range(2 * MOST_KEPT):
        keep_input(tmp_path, replace(kept, name=f"g{number:02d}-f0-decode"))
    assert len(read_inputs(tmp_path, 1)) == MOST_KEPT
    with pytest.raises(UserError, match=r"keeps nothing of iteration 8 .*, only of 2$"):
        read_inputs(tmp_path, 7)


def test_an_input_that_cannot_be_kept_is_no_other_failure(config_of, tmp_path, caplog):
    (tmp_path / "nonfinite").write_text("in the way")
    device = Device(config_of(), tmp_path)
    with pytest.raises(FloatingPointError, match="pixels"):
        device.score(with_nan(device.denoise()[0], 2))
    assert "cannot be kept" in caplog.text


def test_a_damaged_input_is_one_line(config_of, tmp_path):
    (tmp_path / "nonfinite").mkdir()
    (tmp_path / "nonfinite" / "i000001-g00-f0-decode.safetensors").write_bytes(b"damage")
    with pytest.raises(UserError, match=r"g00-f0-decode.safetensors is damaged"):
        read_inputs(tmp_path, 1)


def test_in_another_dtype_an_input_may_be_sound(config_of, tmp_path):
    """Half precision overflows where float32 does not."""
    config = config_of(**{"model.dtype": "float16", "numerics.samples": "drop"})
    device = Device(config, tmp_path)
    segment, _ = device.denoise()
    latents = segment.latents.copy()
    latents[-1, 2] = 6e4
    _, scored = device.score(replace(segment, latents=latents))
    assert scored.nonfinite == {2: "pixels"}
    device.config = config.model_copy(
        update={"model": config.model.model_copy(update={"dtype": "float32"})}
    )
    ((_, _, again, module),) = device.reproduced()
    assert (again, module) == ("", "")
