"""Which settings a replay takes: its samples, and how they are dealt to updates, stay."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from digen_core.algorithms.awm import Awm
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment
from digen_core.errors import UserError
from digen_core.records import IterationRecord, SampleRow
from digen_core.reference.replay import kept_iteration, last_groups, replay_config
from digen_core.transport.metrics import METRICS_OF_RUN, write_metrics
from digen_core.transport.samples import write_samples
from digen_core.transport.segment import Segment
from digen_core.transport.trajectories import write_segment


@pytest.mark.parametrize(
    ("updates", "overrides", "message"),
    [
        (2, {}, "train.updates_per_iteration is 2: the versions between the updates"),
        (2, {"train.updates_per_iteration": 1}, "train.updates_per_iteration cannot be changed"),
        (1, {"train.updates_per_iteration": 2}, "train.updates_per_iteration cannot be changed"),
        (1, {"train.dealt_by": "samples"}, "train.dealt_by cannot be changed in a replay"),
        (
            1,
            {"train.dealt_by": "samples"},
            r"\(but lora, updates_per_iteration, epochs and dealt_by",
        ),
    ],
)
def test_several_updates_are_not_replayed(tmp_path, updates, overrides, message):
    config = RunConfig.model_validate({"train": {"updates_per_iteration": updates}})
    (tmp_path / CONFIG_OF_RUN).write_text(config.model_dump_json())
    with pytest.raises(UserError, match=message):
        replay_config(tmp_path, overrides)


def test_another_algorithm_begins_with_its_own_defaults(tmp_path):
    """What a run kept has every key of its algorithm, which nobody asked of the other one."""
    config = RunConfig.model_validate({"algorithm": {"type": "flow_grpo", "clip_range": 0.5}})
    (tmp_path / CONFIG_OF_RUN).write_text(config.model_dump_json())
    awm = replay_config(tmp_path, {"algorithm.type": "awm", "algorithm.num_levels": 2})
    assert awm.algorithm == Awm(type="awm", num_levels=2)
    same = replay_config(tmp_path, {"algorithm.type": "flow_grpo"})
    assert same.algorithm == config.algorithm


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([0, 1, 2, 4, 7], [0, 2, 7]),  # 1 was replaced, and 4, too
        ([3, 4, 5, 10], [3, 5, 10]),  # candidates 0-2 and 6-8 have no rows
        ([3, 4, 5, 6], [4, 5, 6]),  # but 6, which were dropped
    ],
)
def test_groups_that_others_took_the_place_of_are_not_trained(groups, expected):
    """With 3 prompts an iteration; whichever come first."""
    assert last_groups(reversed(groups), 3) == expected


@pytest.mark.parametrize(
    ("samples", "keeps", "message"),
    [
        (None, 1, "the samples of iteration 1, RUN/samples/iteration-000000.parquet: No such file"),
        ("cut off", 1, "RUN/samples/iteration-000000.parquet is damaged: Could not open Parquet"),
        (
            "renamed",
            1,
            "RUN/samples/iteration-000000.parquet is damaged: it lacks the columns group",
        ),
        ("whole", 1, "RUN keeps no trajectories of iteration 1, as tracking.keep_trajectories, of"),
        ("whole", "all", "though tracking.keep_trajectories is all: it was not then, or they were"),
    ],
)
def test_what_an_iteration_lacks_is_named(tmp_path, samples, keeps, message):
    config = RunConfig.model_validate(
        {"rollout": {"group_size": 2}, "tracking": {"keep_trajectories": keeps}}
    )
    record = IterationRecord(0, 1, 1.5, {"train/grad_norm": 0.5})
    write_metrics(tmp_path / METRICS_OF_RUN, record)
    if samples is not None:
        rows = [
            SampleRow(0, 0, i, "red", 7, 0, "a", i / 2, {}, 0.0, True, [0], [0.5], 0.5, 0.1, {})
            for i in range(2)
        ]
        path = write_samples(tmp_path / "samples", 0, rows)
        content = path.read_bytes()
        if samples == "renamed":
            pq.write_table(pq.read_table(path).rename_columns({"group": "groop"}), path)
        else:
            path.write_bytes(content if samples == "whole" else content[:-8])
    with pytest.raises(UserError, match=re.escape(message.replace("RUN", str(tmp_path)))):
        kept_iteration(tmp_path, config, 0)


def test_fragments_whose_files_are_gone_are_not_left_out_of_the_update(tmp_path):
    config = RunConfig.model_validate(
        {
            "rollout": {"prompts_per_iteration": 2, "group_size": 2, "num_steps": 2},
            "tracking": {"keep_trajectories": "all"},
        }
    )
    write_metrics(tmp_path / METRICS_OF_RUN, IterationRecord(0, 1, 1.5, {"train/grad_norm": 0.5}))
    rows = [
        SampleRow(0, group, i, "red", 7, 0, "a", i / 2, {}, 0.0, True, [0], [0.5], 0.5, 0.1, {})
        for group in range(2)
        for i in range(2)
    ]
    write_samples(tmp_path / "samples", 0, rows)
    latents, sigmas = np.zeros((3, 2, 4), np.float32), np.array([1.0, 0.5, 0.0], np.float32)
    paths = []
    for group in range(2):
        fragment = Fragment(0, group, 0, 0, 2, num_steps=2)
        logprobs = {0: np.zeros(2, np.float32)}
        paths.append(
            write_segment(tmp_path, Segment(fragment, 0, latents, logprobs, 0, sigmas, "a"), [0])
        )
    assert sum(pack.num_pairs for pack in kept_iteration(tmp_path, config, 0).packs) == 4
    paths[1].unlink()
    message = r"trained sample 0 of group 1 \(and of 1 more\), whose trajectory is not kept"
    with pytest.raises(UserError, match=message):
        kept_iteration(tmp_path, config, 0)
