"""Prompts with their own numbers of denoising steps: weights are those of the serial loop."""

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS
from digen_core.eventlog.file import read_log
from digen_core.eventlog.replay import replay
from support.in_process import train_in_process
from support.layout_runs import Case, check_weights, marked, run_case
from support.runs import distance, initial, merged, reference, with_own_steps

JOBS = {
    "flow_grpo": {"algorithm": {"kl_coefficient": 0.1}},
    "KL as a reward": {"algorithm": {"kl_reward": 20.0, "advantage_scale": "none"}},
    "a window": {"algorithm": {"window": [1, 0, 2]}},
    "flow_grpo scaled over the batch": {"algorithm": {"advantage_scale": "batch"}},
    "cps": {"rollout.transition": "cps"},
    "wan's noise": {"rollout.transition": "wan_sde"},
    "grpo_guard": {"algorithm": {"type": "grpo_guard"}},
    "flow_dppo": {"algorithm": {"type": "flow_dppo"}},
    "dance_grpo, own steps": {
        "rollout.transition": "dance",
        "rollout.noise_level": 0.3,
        "algorithm": {
            "type": "dance_grpo",
            "trained_fraction": 1.0,
            "steps_drawn_for": "sample",
        },
    },
    "mix_grpo": {
        "algorithm": {
            "type": "mix_grpo",
            "window_size": 1,
            "untrained_tail": 1,
            "iterations_per_window": 1,  # the window slides
        }
    },
    "ddpo": {"algorithm": {"type": "ddpo", "buffer_size": 6, "min_count": 6}},
    "longcat": {
        "rollout.transition": "longcat_sde",
        "rollout.noise_level": 1.0,
        "algorithm": {"type": "longcat"},
    },
    "diffusion_nft": {"algorithm": {"type": "diffusion_nft"}},
    "awm": {"algorithm": {"type": "awm", "num_levels": 1, "trained_fraction": 1.0}},
    "dgpo": {"algorithm": {"type": "dgpo", "num_levels": 1}},
}


@pytest.mark.ci
@pytest.mark.parametrize("job", JOBS)
def test_weights_equal_the_serial_reference(job, tree, tmp_path):
    changes = {"rollout.prompts_per_iteration": 3, "rollout.fragment_size": 2, "train.pack_size": 3}
    changes["rollout.batch_size"] = 5
    changes |= {"train.adam_eps": 1e-6, "num_iterations": 2, **JOBS[job]}
    config = RunConfig.model_validate(merged(with_own_steps(tree), changes))
    weights, metrics = train_in_process(config, tmp_path)
    expected = reference(config)
    assert distance(expected.weights, initial(config)) > 1e-4
    assert distance(weights, expected.weights) < 1e-10
    assert all(found.get("train/replay_error", 0.0) < 1e-10 for found in metrics)


CASES = [
    Case("colocated", (2,), 2, 3),
    Case("colocated-strong", (3,), 1, 8),
    Case("disaggregated", (2, 1), 2, 3),
    Case("gap", (1, 2), 4, 3, pauses=True),
    Case("tsp", (2, 2), 2, 8),
    Case("tag", (2, 2), 2, 3, helping=True, pauses=True),
    Case("elastic", (2, 2), 2, 3, helping=True, pauses=True),
    Case("tcss", (2, 2), 2, 3, helping=True, share=1.0),
]


@pytest.mark.ci
@pytest.mark.parametrize("case", marked(CASES, (7,), "layouts"), ids=str)
def test_every_layout_has_the_weights_of_the_serial_reference(
    case, tree, four_workers, monkeypatch
):
    address = four_workers.scheduler.address
    found = run_case(case, with_own_steps(tree), address, monkeypatch)
    check_weights(found)
    steps = {}
    for span in found.spans:
        if span.kind == "denoise":
            key = span.iteration, span.group
            steps[key] = max(steps.get(key, 0), span.end_step)
    assert sorted(set(steps.values())) == [2, 3, 4]
    if not case.pauses:  # which the controller does not ask for
        assert replay(read_log(found.folder)).difference is None


def test_the_cases_have_every_layout():
    assert {case.layout for case in CASES} == set(LAYOUTS)
