"""A run is judged by a published suite: its prompts, samples and reward, and the table of them."""

import json

import pytest
from rich.console import Console

from deployments.views.summary import print_suite
from digen_core.checkpoints.suites import SUITES, AskedSuite, suite_config
from digen_core.config.run import RunConfig
from digen_core.data.published import GENEVAL_COLUMNS, GENEVAL_TASKS
from digen_core.errors import UserError
from digen_core.preflight.run import check_suite
from digen_core.records import EvaluationReport
from support.runs import merged, only_run
from support.tiny_models import write_clip, write_mask2former

pytestmark = pytest.mark.slow


def row(tag, prompt, *include):
    return {"tag": tag, "include": list(include), "prompt": prompt}


DOG, SOFA = {"class": "dog", "count": 1}, {"class": "couch", "count": 1}
ROWS = [
    row("single_object", "a dog", DOG),
    row("single_object", "a couch", SOFA),
    row("counting", "two dogs", {"class": "dog", "count": 2}),
    row("position", "a dog above a couch", SOFA, {**DOG, "position": ["above", 0]}),
]


@pytest.fixture
def metadata(tmp_path):
    folder = tmp_path / "geneval"
    folder.mkdir()
    lines = "".join(json.dumps(one) + "\n" for one in ROWS)
    (folder / "evaluation_metadata.jsonl").write_text(lines)
    return folder


def test_a_run_is_judged_by_geneval(tree, metadata, tmp_path, prefect_backend):
    from flows.evaluate_run import evaluate_run
    from flows.post_train import post_train

    (tmp_path / "clip").mkdir()
    detector, clip = write_mask2former(tmp_path / "detector"), write_clip(tmp_path / "clip")
    changes = {"num_iterations": 1, "cluster.reward_workers": {"judges": 1}}
    changes["rewards"] = {"smooth_rewards:brightness": {"pool": "judges"}}
    post_train(RunConfig.model_validate(merged(tree, changes)))
    run_dir = only_run(tree)
    report = evaluate_run(
        str(run_dir), str(metadata), suite="geneval", detector=detector, clip=clip
    )
    assert (report.num_prompts, report.num_samples) == (4, 16)
    correct = report.by_prompt["geneval/correct"]
    expected = {
        "geneval/single_object": (correct[0] + correct[1]) / 2,
        "geneval/counting": correct[2],
        "geneval/position": correct[3],
    }
    expected["geneval/overall"] = sum(expected.values()) / 3
    found = {name: report.rewards[name] for name in expected}
    assert found == pytest.approx(expected)
    assert report.rewards["reward"] == report.rewards["geneval/correct"]
    kept = (run_dir / "evaluation" / "geneval-1.json").read_text()
    assert EvaluationReport.model_validate_json(kept) == report

    config = RunConfig.model_validate_json((run_dir / "config.json").read_text())
    assert list(config.rewards) == ["smooth_rewards:brightness"]  # the run's own is left as it is
    again = suite_config(run_dir, AskedSuite("geneval"), str(metadata), None)
    assert (again.evaluation.samples_per_prompt, again.rewards["geneval"].counts) == (4, "correct")

    prompts = config.prompts.model_copy(update={"train": str(metadata)})
    trained = config.model_copy(update={"prompts": prompts})
    with pytest.raises(UserError, match="the suite were trained on, the first being 'a dog'"):
        check_suite(again, trained)
    with pytest.raises(UserError, match=r"the suite geneval: the text .* holds NUL"):
        suite_config(run_dir, AskedSuite("geneval", "\0"), str(metadata), None)
    (tmp_path / "evaluation.txt").write_text("of the run\n")
    with pytest.raises(UserError, match="has no column 'tag'"):
        check_suite(suite_config(run_dir, AskedSuite("geneval"), None, None), config)


def test_the_tasks_of_the_suite_are_those_of_its_reward():
    suite = SUITES["geneval"]
    assert suite.tasks == {"overall": "Overall", **GENEVAL_TASKS}
    assert suite.columns == GENEVAL_COLUMNS


def test_the_table_is_that_of_the_paper():
    rewards = {f"geneval/{tag}": place / 8 for place, tag in enumerate(GENEVAL_TASKS)}
    rewards["geneval/overall"] = 0.5
    report = EvaluationReport(version=3, num_prompts=553, num_samples=2212, rewards=rewards)
    console = Console(width=100, record=True)
    print_suite(report, SUITES["geneval"], console)
    title, heads, row = console.export_text().splitlines()
    assert title.strip() == "version 3: 2212 samples of 553 prompts"
    assert heads.split() == " ".join(SUITES["geneval"].tasks.values()).split()
    assert len(heads.rstrip()) < 80
    assert row.split() == ["0.50", "0.00", "0.12", "0.25", "0.38", "0.50", "0.62"]
    short = report.model_copy(update={"num_prompts": 5, "rewards": {"geneval/counting": 1.0}})
    print_suite(short, SUITES["geneval"], console)
    assert "of 5 prompts; the published suite has 553" in console.export_text()
