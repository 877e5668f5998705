"""Margins of what a device generates, where they do not fit into its memory at once."""

import numpy as np
import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt, SizedPrompt
from support.in_process import call
from support.runs import merged, tree_of
from tasks import rollout
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
    return lambda: call(
        denoise_steps,
        fragment=Fragment(0, 0, 0, 0, 4, num_steps=STEPS),
        steps=range(STEPS),
        noisy_steps=(),
        version=0,
        conditions=call(encode, prompts=[SizedPrompt(Prompt(PROMPT), config.model.size)])[0],
        key=PROMPT,
        previous=None,
        run_dir=tmp_path,
    )


def test_margins_that_do_not_fit_are_taken_of_fewer_samples(denoised, monkeypatch):
    whole, facts = denoised()
    taken, with_answers = [], rollout.with_answers

    def of_two_at_most(last, *arguments, **settings):
        taken.append(settings["samples"])
        if len(settings["samples"]) > 2:
            raise torch.OutOfMemoryError("there is no more")
        return with_answers(last, *arguments, **settings)

    monkeypatch.setattr(rollout, "with_answers", of_two_at_most)
    again, found = denoised()
    assert taken == [range(4), range(2), range(2, 4)]
    assert (facts.num_parts, found.num_parts) == (1, 2)
    np.testing.assert_allclose(again.latents, whole.latents, rtol=1e-9, atol=1e-12)
    assert found.step_values.keys() == facts.step_values.keys()
    for level, values in facts.step_values.items():
        np.testing.assert_allclose(found.step_values[level], values, rtol=1e-9, atol=1e-12)
