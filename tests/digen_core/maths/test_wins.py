"""Wins of one evaluation over another: by hand, their properties, and where there are none."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

from deployments.views.report_rewards import evaluation_table
from deployments.views.summary import print_evaluation, print_run
from digen_core.config.rewards import RewardConfig
from digen_core.config.run import RunConfig
from digen_core.maths.statistics import Share, pair_wins, prompt_wins, share_of
from digen_core.records import EvaluationReport, RunReport, Wins
from digen_core.rewards.failures import settle
from digen_core.rewards.protocol import judged_by, sample_scores, sampled_as
from digen_core.rewards.relative import without_relative
from tasks.views.display import Progress
from tasks.views.report import report_of as page_of

BASE = [[1.0, 2.0], [0.0, None], [3.0, 3.0]]
TRAINED = [[2.0, 1.0], [0.5, 4.0], [4.0, 3.0]]


def test_wins_by_hand():
    # a win and a loss; a win, and no pair; a win and a tie
    assert pair_wins(TRAINED, BASE) == [0.5, 1.0, 0.75]
    # means 1.5 and 1.5; 2.25 and 0; 3.5 and 3
    assert prompt_wins(TRAINED, BASE) == [0.5, 1.0, 1.0]
    share = share_of([0.5, 1.0, 0.75])
    assert share == Share(0.75, pytest.approx(0.25 / 3**0.5))  # deviations -0.25, 0.25, 0
    assert share_of([1.0]) == Share(1.0, None)
    assert share_of([]) is None


def test_prompts_and_samples_that_one_side_lacks_count_for_nobody():
    assert pair_wins([[1.0, 9.0], [None]], [[0.0], [5.0]]) == [1.0]
    assert prompt_wins([[1.0, None], [None]], [[0.0], [5.0]]) == [1.0]
    with pytest.raises(ValueError, match="shorter"):
        pair_wins([[1.0], [1.0]], [[1.0]])
    with pytest.raises(ValueError, match="shorter"):
        prompt_wins([[1.0], [1.0]], [[1.0]])


@pytest.mark.parametrize("wins", [pair_wins, prompt_wins])
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_nobody_wins_with_a_score_that_is_no_number(wins, odd):
    for sides in (([[odd]], [[0.0]]), ([[0.0]], [[0.0, odd]])):
        with pytest.raises(ValueError, match=f"a score is {odd}"):
            wins(*sides)
    with pytest.raises(ValueError, match="a share of wins is nan"):
        Share(float("nan"), None)


SCORE = st.none() | st.integers(-3, 3).map(float)
TABLES = st.integers(1, 5).flatmap(
    lambda count: st.tuples(
        *[st.lists(st.lists(SCORE, max_size=4), min_size=count, max_size=count)] * 2
    )
)


@given(TABLES)
def test_the_wins_of_both_add_up_to_one(tables):
    first, second = tables
    for wins in (pair_wins, prompt_wins):
        own, other = wins(first, second), wins(second, first)
        assert [a + b for a, b in zip(own, other, strict=True)] == pytest.approx([1.0] * len(own))
    if shares := share_of(pair_wins(first, second)):
        assert shares.value + share_of(pair_wins(second, first)).value == pytest.approx(1.0)


@given(TABLES, st.sampled_from([lambda x: 2 * x - 7, lambda x: x**3, np.exp]))
def test_the_scale_of_a_reward_does_not_matter(tables, scale):
    first, second = tables
    scaled = [[[s if s is None else float(scale(s)) for s in row] for row in t] for t in tables]
    assert pair_wins(*scaled) == pair_wins(first, second)


@given(TABLES)
def test_with_one_sample_a_prompt_is_its_pair(tables):
    first, second = ([row[:1] for row in table] for table in tables)
    assert prompt_wins(first, second) == pair_wins(first, second)


# --- reports ----------------------------------------------------------------------------------


def report_of(version: int, scores=TRAINED, **changes) -> EvaluationReport:
    own = {
        "version": version,
        "num_prompts": len(scores),
        "num_samples": 6,
        "rewards": {"reward": 0.5 * version},
        "by_prompt": {"reward": [0.5 * version] * len(scores)},
        "by_sample": {"reward": scores},
        "judged_by": {"reward": "judge"},
        "prompts_hash": "prompts",
        "sampled_as": "noise",
    }
    return EvaluationReport.model_validate({**own, **changes})


WINS = Wins(prompts=share_of([0.5, 1.0, 1.0]), pairs=share_of([0.5, 1.0, 0.75]))


def test_a_report_wins_over_the_base_model_on_the_same_prompts_and_noise_only():
    base, trained = report_of(0, BASE), report_of(2)
    assert trained.wins_over_base(base) == {"reward": WINS}
    for change in ({"prompts_hash": "x"}, {"sampled_as": "x"}, {"judged_by": {"reward": "x"}}):
        assert report_of(2, **change).wins_over_base(base) == {}
    assert trained.wins_over_base(report_of(1, BASE)) == {}
    apart = report_of(2, sampled_as="x").wins_over(base, "reward")
    assert apart == Wins(prompts=WINS.prompts, pairs=None)
    assert trained.wins_over(base, "other") is None
    assert trained.wins_over(report_of(0, by_sample={"reward": [[None]] * 3}), "reward") is None


def test_reports_of_older_runs_have_no_wins():
    old = EvaluationReport(version=0, num_prompts=3, num_samples=6, rewards={"reward": 0.5})
    assert report_of(2).wins_over_base(old) == {}
    assert old.wins_over(old, "reward") is None


def test_a_report_is_read_as_it_was_written_and_a_damaged_one_is_none():
    report = report_of(2).model_copy(update={"wins": {"reward": WINS}})
    text = report.model_dump_json()
    assert EvaluationReport.model_validate_json(text) == report
    damages = {
        '"num_prompts":3': '"num_prompts":4',
        '"judged_by":{"reward"': '"judged_by":{"other"',
        '"value":0.75': '"value":1.75',
        '"value":0.75,': '"value":0.75,"more":1,',
    }
    for there, damage in damages.items():
        assert there in text
        with pytest.raises(ValidationError):
            EvaluationReport.model_validate_json(text.replace(there, damage))


# --- what can be won --------------------------------------------------------------------------


def rewards_of(tree) -> dict[str, RewardConfig]:
    return RunConfig.model_validate({"rewards": tree}).rewards


def test_relative_rewards_and_marks_of_failures_have_no_samples_to_compare():
    tree = {"shapes": {"on_failure": "neutral"}, "order": {"type": "ranked", "of": "shapes"}}
    rewards = rewards_of(tree)
    columns = {
        "reward": np.zeros(4),
        "shapes/score": np.array([1.0, 0.0, 3.0, 5.0]),
        "shapes/failed": np.array([0.0, 1.0, 0.0, 0.0]),
    }
    settled = without_relative(settle(columns, rewards), rewards)
    assert "order/failed" in settled
    expected = [[1.0, None], [3.0, 5.0]]
    found = sample_scores(settled, rewards, 2)
    assert found == {"reward": expected, "shapes/score": expected}


def test_where_and_for_how_much_a_reward_is_asked_does_not_change_its_scores():
    plain, heavy, other = (
        rewards_of({"jpeg_compressibility": 1.0, "shapes": own})
        for own in ({}, {"weight": 2.0}, {"type": "clipscore"})
    )
    assert judged_by(plain, "shapes/exact") == judged_by(heavy, "shapes/score")
    assert judged_by(plain, "shapes/score") != judged_by(other, "shapes/score")
    assert judged_by(plain, "reward") != judged_by(heavy, "reward")
    assert judged_by(plain, "jpeg_compressibility/score") != judged_by(plain, "shapes/score")
    vlm = {"url": "http://127.0.0.1:8000/v1", "model": "vlm"}
    patient, hasty = (
        rewards_of({"judge": vlm | own, "clipscore": {"batch_size": size}})
        for own, size in (({}, 4), ({"concurrency": 64, "token_variable": "TOKEN"}, 32))
    )
    assert judged_by(patient, "reward") == judged_by(hasty, "reward")


def test_what_makes_samples_is_named():
    def named(**changes):
        tree = {"model": {"device": "cpu"}, **changes}
        return sampled_as(RunConfig.model_validate(tree))

    assert named() == named(model={"device": "auto"}, num_iterations=7)
    others = [{"seed": 3}, {"evaluation": {"num_steps": 3}}, {"model": {"guidance_scale": 0.5}}]
    assert len({named(), *(named(**other) for other in others)}) == 4


@pytest.mark.parametrize(
    "of_training",
    [
        {"train_guidance_scale": 4.0},
        {"reference_guidance_scale": 4.0},
        {"train_experts": "high"},
        {"sizes": [[480, 480, 5]]},
    ],
    ids=lambda own: next(iter(own)),
)
def test_what_a_model_has_in_training_alone_makes_no_other_samples(of_training):
    def named(**model):
        algorithm = {"type": "diffusion_nft", "kl_coefficient": 0.1}
        model = {"family": "wan", "device": "cpu", **model}
        return sampled_as(RunConfig.model_validate({"algorithm": algorithm, "model": model}))

    assert named(**of_training) == named()


# --- what is shown ----------------------------------------------------------------------------


def printed(call, *arguments) -> str:
    console = Console(file=io.StringIO(), width=80)
    call(*arguments, console)
    return console.file.getvalue()


def test_the_summary_of_a_run_shows_them_in_80_columns():
    name = "jpeg_compressibility/score"
    scores = {name: WINS, "reward": WINS}
    means = {"reward": -206.5, name: -206.25}
    by_prompt = {key: [-206.5, -206.25, -206.0] for key in means}
    base = report_of(0, BASE, rewards=means, by_prompt=by_prompt)
    last = report_of(2, rewards=means, by_prompt=by_prompt).model_copy(update={"wins": scores})
    report = RunReport(
        run_id="a", run_dir="runs/a", version=2, num_iterations=2, seconds=2.0, before=base,
        after=last, view="mlflow ui",
    )  # fmt: skip
    lines = printed(print_run, report, 3.0).splitlines()
    (row,) = [line for line in lines if line.startswith(name[:10])]
    assert row.split()[-4:] == ["75%", "±", "14%", "noise"]
    assert row.count("±") == 4, "numbers were wrapped, and not the name"
    assert "".join(line.split()[0] for line in lines[lines.index(row) :][:2]) == name
    assert len(row) <= 80
    assert any(line.startswith("wins: pairs of samples") for line in lines)
    assert "75% ± 14%" in printed(print_evaluation, last)
    without = printed(print_run, report.model_copy(update={"after": base}), 3.0)
    assert "wins" not in without
    assert "wins" not in printed(print_evaluation, base)


@pytest.mark.parametrize("tags", [("before", "after"), ("after", "before")])
def test_before_stands_before_after_also_of_one_version(tags):
    """Of a run that made none: files come in any order."""
    table = evaluation_table({tag: report_of(0, BASE) for tag in tags})
    assert table.columns == ("evaluation", "before", "after", "change", "")


def test_pages_show_them():
    last = report_of(2).model_copy(update={"wins": {"reward": WINS}})
    evaluations = {"before": report_of(0, BASE), "after": last}
    table = evaluation_table(evaluations)
    assert table.columns == ("evaluation", "before", "after", "change", "wins", "")
    assert [len(row) for row in table.rows] == [len(table.columns)]
    assert table.rows[0][4] == "75% ± 14%"
    progress = Progress(RunConfig(), evaluations=evaluations)
    lines = page_of("run", progress, {}).splitlines()
    head, rule, row = (line for line in lines if line.startswith("|"))
    assert head.endswith("| change | wins |  |")
    assert "| 75% ± 14% |" in row
    assert head.count("|") == rule.count("|") == row.count("|")
