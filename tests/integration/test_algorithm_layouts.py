"""Every algorithm and option of one under every layout that takes it: weights of the serial loop.

Stale layouts are compared with a serial loop that is told which versions generated. Who refuses
which layout: tests/digen_core/config/test_refused_layouts.py.
"""

from collections import defaultdict
from itertools import cycle

import pytest

from digen_core import algorithms
from digen_core.control.layout import LAYOUTS
from digen_core.records import IterationRecord
from support.layout_runs import Case, Run, check_weights, marked

pytestmark = pytest.mark.slow

DANCE = {"rollout.transition": "dance", "rollout.noise_level": 0.3}
TWO_REWARDS = {"rewards": {"smooth_rewards:brightness": 1.0, "smooth_rewards:contrast": 0.5}}
# Bounds that some of the stale pairs are beyond: log-ratios are about 4e-5.
PAIRS = {"trained_fraction": 0.5, "clip_range": 1e-5}
GUARD = {"type": "grpo_guard", "trained_fraction": 0.5, "clip_range": 3e-6}
BOUNDS = {"correction_bounds": [0.99999, 1.00001]}

ALGORITHMS: dict[str, dict] = {  # what changes in the job; `algorithm` as a whole
    "flow_grpo": {"algorithm": {**PAIRS, "kl_coefficient": 0.1}},
    "grpo_guard": {"algorithm": {**GUARD, "kl_coefficient": 0.1}},
    "flow_dppo": {
        "algorithm": {"type": "flow_dppo", "trained_fraction": 0.5, "max_divergence": 1e-8}
    },
    "dance_grpo": {
        **DANCE,
        "rollout.initial_noise": "group",
        "algorithm": {"type": "dance_grpo", "clip_range": 1e-5},
    },
    "mix_grpo": {
        "algorithm": {
            "type": "mix_grpo",
            "window_size": 2,
            "untrained_tail": 1,
            "iterations_per_window": 1,  # the window slides
            "log_ratio_coefficient": 0.1,
            "clip_range": 1e-5,
        }
    },
    "ddpo": {"algorithm": {**PAIRS, "type": "ddpo", "buffer_size": 6, "min_count": 6}},
    "longcat": {
        **TWO_REWARDS,
        "rollout.transition": "longcat_sde",
        "rollout.noise_level": 1.0,
        "algorithm": {
            "type": "longcat",
            "advantage_scale": "group",
            "mix": "advantages",
            "window": [1, 0, 3],
            "clip_range": 1e-5,
            "kl_coefficient": 0.1,
        },
    },
    "diffusion_nft": {"algorithm": {"type": "diffusion_nft", "trained_fraction": 0.75}},
    "awm": {
        "algorithm": {
            "type": "awm",
            "num_levels": 2,
            "trained_fraction": 1.0,
            "old_policy_decay": "low_ramp",  # else nothing is far from what generated
        }
    },
}
PREFERENCES = {"num_levels": 2, "trained_fraction": 0.75}
ALGORITHMS |= {
    "dgpo": {"algorithm": {"type": "dgpo", **PREFERENCES, "old_policy_decay": "low_ramp"}},
    "dpo": {"algorithm": {"type": "dpo", **PREFERENCES, "kl_coefficient": 0.1}},
}
OPTIONS: dict[str, dict] = {  # as many at once as go together
    "best of two": {  # of four, in fragments of one or two: of some no sample is trained
        **TWO_REWARDS,
        "rollout.initial_noise": "iteration",
        "algorithm": {
            **PAIRS,
            **BOUNDS,
            "best_of": 2,
            "mix": "advantages",
            "correction": "truncate",
        },
    },
    "own steps": {
        **DANCE,
        "rollout.num_steps": 6,
        "algorithm": {"type": "dance_grpo", "clip_range": 1e-5, "steps_drawn_for": "sample"},
    },
    "own levels": {
        "rollout.num_steps": 5,
        "algorithm": {"type": "diffusion_nft", "trained_fraction": 0.6, "own_levels": True},
    },
    "own levels of parts": {
        "rollout.num_steps": 5,
        "algorithm": {
            "type": "diffusion_nft",
            "trained_fraction": 0.8,
            "num_levels": 2,
            "own_levels": True,
            "old_policy_decay": "ramp",
        },
    },
    "own matching levels": {
        "algorithm": {
            "type": "awm",
            "num_levels": 2,
            "trained_fraction": 1.0,
            "own_levels": True,
            "old_policy_decay": "low_ramp",
        },
    },
    "branches": {  # each group's samples branch twice, at a step of the group's own
        "rollout.branches": 2,
        "schedule.reference": "generation",
        "algorithm": {
            "window": [1, 0, 3],
            "window_drawn_for": "group",
            "noise_weight": 2.25,
            "clip_range": 1e-5,
            "kl_coefficient": 0.1,
        },
    },
    "second order": {  # of the steps after MixGRPO's window, which are fewer
        "rollout.num_steps": 7,
        "rollout.solver": "dpmpp_2m",
        "algorithm": {
            "type": "mix_grpo",
            "window_size": 2,
            "iterations_per_window": 1,
            "tail_fraction": 0.5,  # 4, 4 and 5 steps in place of 7
            "clip_range": 1e-5,
        },
    },
    "best of three": {
        "rollout.initial_noise": "group",
        "algorithm": {**GUARD, **BOUNDS, "best_of": 3, "correction": "reject"},
    },
    "lagging nft": {
        **TWO_REWARDS,
        "rollout.solver": "dpmpp_2m",  # of all steps
        "algorithm": {
            "type": "diffusion_nft",
            "old_policy_decay": "ramp",
            "best_of": 3,
            "mix": "advantages",
            "advantage_mode": "positive_only",
        },
    },
    "icepop": {
        "rollout.storage": "float16",
        "algorithm": {
            **PAIRS,
            **BOUNDS,
            "correction": "icepop",
            "noise_weight": 1.73,
            "kl": "gaussian",
            "kl_coefficient": 0.1,
        },
    },
    "reference asked in generation": {
        "schedule.reference": "generation",
        "algorithm": {**PAIRS, "kl_coefficient": 0.5},
    },
    "reference asked for clean latents": {
        "schedule.reference": "generation",
        "algorithm": {"type": "dgpo", **PREFERENCES, "kl_coefficient": 0.5},
    },
    "batch scale": {"algorithm": {**PAIRS, "advantage_scale": "batch"}},
    "largest group's scale": {"algorithm": {**PAIRS, "type": "longcat"}},
}
JOBS = ALGORITHMS | OPTIONS
NEED_ALL_REWARDS = ("ddpo", "batch scale", "largest group's scale")
BARRIER = tuple(name for name, layout in LAYOUTS.items() if not layout.pipelined)

OFTEN = [
    ("grpo_guard", Case("tcss", (2, 2), 2, 3, helping=True, share=1.0)),
    ("ddpo", Case("colocated-strong", (3,), 2, 3)),
    ("diffusion_nft", Case("tcss", (2, 1), 2, 3, pauses=True, share=1.0)),
    ("branches", Case("tag", (2, 2), 2, 3, helping=True, pauses=True)),
    ("second order", Case("elastic", (2, 1), 2, 8, helping=True, pauses=True)),
]


def all_jobs() -> list[tuple[str, Case]]:
    """Every job under every layout that takes it; stale ones may begin all groups early."""
    cuts = cycle([(2, 3), (4, 8), (1, 1), (1, 3), (2, 8)])
    shares = [(name, None) for name in LAYOUTS if name != "tcss"] + [
        ("tcss", 1.0),
        ("elastic", 1.0),
    ]
    return [
        (
            job,
            Case(
                layout,
                (3,) if LAYOUTS[layout].colocated else (2, 2),
                *next(cuts),
                helping=LAYOUTS[layout].trainers_help,
                share=share,
            ),
        )
        for job in JOBS
        for layout, share in shares
        if layout in BARRIER or job not in NEED_ALL_REWARDS
    ]


def replay_errors_in(metrics: dict[str, float]) -> set[str]:
    """Return the devices of which there is a replay error."""
    ending = "/replay_error"
    return {
        name.removeprefix("device/").removesuffix(ending)
        for name in metrics
        if name.startswith("device/") and name.endswith(ending)
    }


def own_samplers(run: Run, rows: list[dict], record: IterationRecord) -> list[set[str]]:
    """Return who sampled what an iteration trained with the version that it trained, by sample.

    Of a fragment that was late another device has done the rest.
    """
    if run.config.trains_clean:
        return []
    devices = defaultdict(set)
    for span in run.spans:
        if span.kind == "denoise" and span.iteration == record.iteration:
            devices[span.group, span.fragment].add(span.device)
    size = run.config.fragment_size
    own = (row for row in rows if row["iteration"] == record.iteration and row["trained"])
    return [
        devices[row["group"], row["sample"] // size]
        for row in own
        if row["policy_version"] == record.version - 1
    ]


def check_replay_errors(run: Run, rows: list[dict], record: IterationRecord) -> None:
    """There is an error of each device whose samples were trained, and of no other."""
    found, samplers = replay_errors_in(record.metrics), own_samplers(run, rows, record)
    assert found <= set().union(*samplers)
    assert all(found & devices for devices in samplers)


def check_stale_pairs(metrics: dict[str, float], rows: list[dict], record: IterationRecord) -> None:
    """Only stale pairs are clipped, and their share is told apart."""
    own = [row for row in rows if row["iteration"] == record.iteration and row["trained"]]
    share = sum(row["policy_version"] < record.version - 1 for row in own) / len(own)
    assert ("train/stale_clip_fraction" in metrics) == bool(share)
    clipped = share * metrics.get("train/stale_clip_fraction", 0.0)
    assert metrics["train/clip_fraction"] == pytest.approx(clipped)


def check_steps_taken(found: Run) -> None:
    """Iterations take as many steps as MixGRPO says of the places of its window."""
    taken = {span.iteration: 0 for span in found.spans if span.kind == "denoise"}
    for span in found.spans:
        if span.kind == "denoise":
            taken[span.iteration] = max(taken[span.iteration], span.end_step)
    assert taken == {0: 4, 1: 4, 2: 5}


def check(job: str, case: Case, run_layout) -> None:
    """Compare with the serial loop, and see that what makes the case hard has happened."""
    found = run_layout(case, **JOBS[job])
    check_weights(found)
    config, rows = found.config, found.samples()
    stale = [row for row in rows if row["policy_version"] < row["iteration"]]
    assert bool(stale) == bool(case.share)
    assert sum(row["trained"] for row in rows) == 3 * 3 * config.trained_per_group
    if config.algorithm.shortens:
        check_steps_taken(found)
    for record in found.records:
        metrics = record.metrics
        is_stale = metrics["staleness/max"] > 0
        own = metrics["staleness/mean"] < 1  # some pairs are the trained version's own
        assert ("train/replay_error" in metrics) == (own and not config.trains_clean)
        assert metrics.get("train/replay_error", 0.0) < 1e-10
        check_replay_errors(found, rows, record)
        if not config.trains_clean:
            assert (metrics["train/max_log_ratio"] > 1e-7) == is_stale
            if config.algorithm.correction == "none":
                assert bool(metrics["train/clip_fraction"]) == is_stale
                check_stale_pairs(metrics, rows, record)


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("job", "case"), marked(OFTEN, (1, 2), "ci"), ids=str)
def test_weights_of_an_algorithm_equal_the_serial_reference(job, case, run_layout):
    check(job, case, run_layout)


@pytest.mark.algorithms
@pytest.mark.parametrize(("job", "case"), all_jobs(), ids=str)
def test_weights_of_an_algorithm_equal_the_serial_reference_everywhere(job, case, run_layout):
    check(job, case, run_layout)


@pytest.mark.algorithms
@pytest.mark.parametrize("job", JOBS)
def test_weights_equal_with_screened_samples_in_batches_of_several_groups(job, run_layout):
    """Samples have the noise of candidates, and what is trained is off-policy after an update."""
    layout = "colocated-strong" if job in NEED_ALL_REWARDS else "tag"
    case = Case(layout, (3,) if job in NEED_ALL_REWARDS else (2, 1), 2, 3)
    changes = {
        "rollout.screening": {"candidates": 7},
        "rollout.initial_noise": "sample",  # else there is nothing to choose
        "rollout.branches": 1,
        "rollout.batch_size": 8,
        "train.updates_per_iteration": 3,
        "train.learning_rate": 1e-2,
    }
    check_weights(run_layout(case, **JOBS[job] | changes), version=9)


def test_every_algorithm_is_there():
    assert ALGORITHMS.keys() == algorithms.ALGORITHMS.keys()
    assert {job for job, _ in all_jobs()} == set(JOBS)
    assert {case.layout for job, case in all_jobs() if job == "ddpo"} == set(BARRIER)
