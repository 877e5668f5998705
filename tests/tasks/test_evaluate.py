"""What a device does of an evaluation: the weights that are judged, and samples as fit into memory.

One pull that fails ends no run.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts
from digen_core.gang.members import Gang
from support.in_process import call
from support.runs import merged, tree_of
from tasks import evaluate
from tasks.versions import publish, start_state
from tasks.worker import engine as engine_module
from tasks.worker.engine import build_engine
from tasks.worker.pulling import PullError


@pytest.fixture
def pulls(monkeypatch):
    """What pulls come to, one after the other, and the seconds that each takes."""
    found = SimpleNamespace(failures=[], seconds=0.0, clock=0.0)

    def load_average(*of, **options):
        found.clock += found.seconds
        return found.failures.pop(0)

    monkeypatch.setattr(evaluate, "load_average", load_average)
    monkeypatch.setattr(evaluate, "monotonic", lambda: found.clock)
    return found


def load():
    evaluate._load("run", None, ("tcp://a:1",), by_delta=False)


def test_what_arrives_damaged_is_pulled_again(pulls):
    pulls.failures = ["it arrived damaged", "a:1 does not answer (CommClosedError)", ""]
    load()
    assert not pulls.failures


def test_after_three_pulls_it_is_given_up(pulls):
    pulls.failures = ["it arrived damaged", "it arrived damaged", "a:1 is gone", ""]
    with pytest.raises(PullError, match="a:1 is gone"):
        load()


def test_one_that_takes_its_time_is_not_tried_again(pulls):
    pulls.failures, pulls.seconds = ["a:1 does not answer (TimeoutError)", ""], 60.0
    with pytest.raises(PullError, match="TimeoutError"):
        load()


@pytest.fixture
def judging(tiny_flux, tmp_path, monkeypatch):
    """A device, and a function that judges three prompts by four samples of each on it."""
    monkeypatch.setattr(engine_module, "_engines", {})
    changes = {"rollout.fragment_size": 2, "evaluation.num_steps": 2}
    config = RunConfig.model_validate(merged(tree_of(tiny_flux, tmp_path), changes))
    engine = build_engine("run", config, "both-0", frozenset({"rollout", "trainer"}))
    average, _ = call(publish, state=call(start_state)[0], average=True)
    prompts = evaluation_prompts(config)[:3]

    def judge():
        kept, scored = call(
            evaluate.sample_and_score,
            prompts=prompts,
            indices=[0, 1, 2],
            samples_per_prompt=4,
            policy_version=average,
            source=(),
            by_delta=False,
            shown=1,
            keep=frozenset({"images"}),
        )
        return kept["images"], scored

    return engine, judge


def test_one_prompt_need_not_fit_at_once(judging, monkeypatch):
    """As many of its samples as do are made together, and are what they are among all."""
    engine, judge = judging
    images, scored = judge()
    made, as_ever = [], evaluate.clean_latents
    embedded, embed_as_ever = [], engine.policy.encode

    def embed(texts, *of):
        embedded.append(len(texts))
        return embed_as_ever(texts, *of)

    def at_most_three(run_id, condition, samples):
        if len(samples) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made.append(len(samples))
        return as_ever(run_id, condition, samples)

    monkeypatch.setattr(evaluate, "clean_latents", at_most_three)
    monkeypatch.setattr(engine.policy, "encode", embed)
    again, scored_again = judge()
    assert made == [3] * 4
    assert embedded == [3], "each prompt once, however its samples are cut"
    np.testing.assert_allclose(again, images, atol=1e-5)
    assert scored_again.rewards.keys() == scored.rewards.keys()
    assert len(images) == 12


def test_an_evaluation_is_decoded_in_parts_if_need_be(judging, monkeypatch):
    engine, judge = judging
    images, _ = judge()
    decoded, as_ever = [], engine.policy.decode

    def at_most_four(x):
        if len(x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        decoded.append(len(x))
        return as_ever(x)

    monkeypatch.setattr(engine.policy, "decode", at_most_four)
    again, _ = judge()
    assert decoded == [3] * 4
    np.testing.assert_allclose(again, images, atol=1e-5)


def test_a_gang_samples_no_more_than_memory_is_counted_for(judging):
    """It cannot try with fewer where the first try finds no room."""
    engine, _ = judging
    size = engine.config.model.size
    for gang, together in ((Gang(0, 2), 2), (Gang(0, 4), 4), (Gang(0, 4, 4), 2)):
        own = replace(engine, gang=gang)
        parts = own.fitting.in_parts("evaluate", size, 8, lambda part: part.stop - part.start)
        assert parts == [together] * (8 // together)
