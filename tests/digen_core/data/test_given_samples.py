"""Samples that come with prompts, and what rows say of them: read, told apart, and refused."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from digen_core.config.rewards import called, given, relative, that_see
from digen_core.config.run import RunConfig
from digen_core.data.images import SourceImage
from digen_core.data.prompts import evaluation_prompts, prompts_hash, train_prompts
from digen_core.errors import ConfigError
from digen_core.preflight.rewards import notes_on_rewards
from digen_core.rewards.failures import settle
from support.edits import picture

BEST, WORST = (SourceImage.of(picture(seed)) for seed in (1, 2))


def config_of(path: Path, rewards=None, **prompts) -> RunConfig:
    return RunConfig.model_validate(
        {
            "prompts": {
                "train": str(path),
                "evaluation_fraction": 0.5,
                "sample_columns": ["jpg_0", "jpg_1"],
                **prompts,
            },
            "rewards": rewards or {"own": {"type": "given", "columns": ["label_0", "label_1"]}},
            "rollout": {"group_size": 2},
            "algorithm": {"type": "dpo"},
        }
    )


def rows_of(folder: Path) -> list[dict]:
    """Rows in the format of Pick-a-Pic, one of which will be kept for evaluation."""
    for name, seed in (("a.png", 1), ("b.png", 2)):
        (folder / name).write_bytes(picture(seed))
    return [
        {"prompt": text, "jpg_0": "a.png", "jpg_1": "b.png", "label_0": 1.0, "label_1": 0}
        for text in ("a red circle", "a blue square")
    ]


def write(folder: Path, rows: list[dict]) -> Path:
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "pairs.jsonl"


def test_rows_of_pick_a_pic(tmp_path):
    config = config_of(write(tmp_path, rows_of(tmp_path)))
    (prompt,), (judged,) = train_prompts(config), evaluation_prompts(config)
    assert prompt.samples == (BEST, WORST)
    assert prompt.scores == {"own": (1.0, 0.0)}
    assert (judged.samples, judged.scores, judged.images) == ((), {}, ())
    assert prompt.text != judged.text


def test_bytes_of_parquet_and_of_datasets(tmp_path):
    rows = [
        {"prompt": text, "jpg_0": picture(1), "jpg_1": {"bytes": picture(2), "path": None}}
        for text in ("a", "b")
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    rewards = {"chosen": {"type": "given", "values": [1, 0]}}
    (prompt,) = train_prompts(config_of(tmp_path / "pairs.parquet", rewards))
    assert prompt.samples == (BEST, WORST)
    assert prompt.scores == {"chosen": (1.0, 0.0)}


def test_numbers_of_tables_of_text(tmp_path):
    rows_of(tmp_path)
    lines = ["prompt,jpg_0,jpg_1,label_0,label_1", "a,a.png,b.png,0.25,1", "b,a.png,b.png,0.25,1"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    (prompt,) = train_prompts(config_of(tmp_path / "pairs.csv"))
    assert prompt.scores == {"own": (0.25, 1.0)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jpg_1": None}, r"line 2 has no sample: its 'jpg_1' is None .*give the path"),
        ({"jpg_1": ["a.png", "b.png"]}, r"line 2 has no sample: its 'jpg_1' is \["),
        ({"jpg_0": "c.png"}, r"line 2 has no sample: its 'jpg_0' is .*cannot read the image"),
        ({"label_1": float("nan")}, r"its 'label_1' is nan, which rewards.own cannot be; write"),
        ({"label_1": float("inf")}, r"its 'label_1' is inf, which rewards.own cannot be"),
        ({"label_0": "better"}, r"line 2: its 'label_0' is 'better', which rewards.own cannot"),
        ({"label_0": None}, r"line 2: its 'label_0' is None, which rewards.own cannot be"),
        ({"label_0": True}, r"line 2: its 'label_0' is True, which rewards.own cannot be"),
    ],
    ids=str,
)
def test_what_a_row_lacks_is_told_with_file_and_row(change, message, tmp_path):
    rows = rows_of(tmp_path)
    rows[1] |= change
    config = config_of(write(tmp_path, rows))
    with pytest.raises(ConfigError, match=message) as error:
        train_prompts(config)
    assert "\n" not in str(error.value)
    assert "pairs.jsonl line 2" in str(error.value)


def test_a_column_that_is_not_there_is_told(tmp_path):
    path = write(tmp_path, [{"prompt": text} for text in "ab"])
    with pytest.raises(ConfigError, match=r"has no column 'jpg_0'"):
        train_prompts(config_of(path))
    assert evaluation_prompts(config_of(path))  # which need none


def test_the_hash_names_samples_and_scores(tmp_path):
    rows = rows_of(tmp_path)
    hashes = []
    for change in ({}, {"label_1": 0.5}, {"jpg_1": "a.png"}):
        path = write(tmp_path, [{**row, **change} for row in rows])
        hashes.append(prompts_hash(train_prompts(config_of(path))))
    assert len({*hashes}) == 3


def test_what_models_and_rewards_are_sent_has_no_samples(tmp_path):
    (prompt,) = train_prompts(config_of(write(tmp_path, rows_of(tmp_path))))
    shown = prompt.shown_in((32, 32, 1))
    assert (shown.samples, shown.key, shown.text) == ((), prompt.key, prompt.text)
    assert len(pickle.dumps(shown)) < 1000 < len(pickle.dumps(prompt))


# --- the reward -------------------------------------------------------------------------------

REWARDS = {
    "own": {"type": "given", "values": [1, 0], "weight": 2.0},
    "shapes": {"weight": 0.5},
    "order": {"type": "ranked", "of": "own"},
}


def test_given_scores_are_summed_and_ranked_with_the_others(tmp_path):
    """By hand: 2 x 1 + 0.5 x 0.2 + 1, and 2 x 0 + 0.5 x 0.6 + 0."""
    rewards = config_of(tmp_path / "a.jsonl", REWARDS).rewards
    columns = {"reward": np.array([0.1, 0.3]), "shapes/score": np.array([0.2, 0.6])}
    found = settle(columns, rewards, {"own": (1.0, 0.0)})
    assert found["own/score"].tolist() == [1.0, 0.0]
    assert found["order/score"].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(found["reward"], [3.1, 0.3], rtol=1e-15)


def test_it_is_never_called_and_says_nothing_of_a_version(tmp_path):
    config = config_of(tmp_path / "a.jsonl", REWARDS)
    assert list(given(config.rewards)) == ["own"]
    assert list(called(config.rewards)) == list(that_see(config.rewards, "samples")) == ["shapes"]
    assert relative(config.rewards) == ["own", "order"]
    assert not config.scored_elsewhere
    assert not notes_on_rewards(config)
    (note,) = notes_on_rewards(config_of(tmp_path / "a.jsonl"))
    assert note.startswith("all rewards (own) tell only the samples of a group apart")
    assert RunConfig.model_validate(config.model_dump()) == config


def test_the_best_version_is_not_told_by_it(tmp_path):
    tree = config_of(tmp_path / "a.jsonl").model_dump()
    tree["checkpoints"] |= {"keep_best": 1, "best_by": "evaluation/reward"}
    with pytest.raises(ValueError, match=r"that tell only the samples of a group apart \(own\)"):
        RunConfig.model_validate(tree)
