"""A run is judged by a published suite: its prompts, samples and reward, and the table of them."""

import json
from zlib import crc32

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from deployments.views.summary import print_suite
from digen_core.checkpoints.judging import Judging, judged_config
from digen_core.checkpoints.retention import evaluations_of
from digen_core.checkpoints.suites import SUITES
from digen_core.config.run import RunConfig
from digen_core.data.published import DPG_CATEGORIES, GENEVAL_COLUMNS, GENEVAL_TASKS
from digen_core.errors import UserError
from digen_core.preflight.run import check_suite
from digen_core.records import EvaluationReport
from support.families import TOKENS
from support.judge_servers import MODEL, images_of, judging, says, texts_of
from support.runs import merged, only_run
from support.tiny_image_reward import write_image_reward
from support.tiny_models import write_blip_vqa, write_clip, write_dino, write_mask2former

pytestmark = pytest.mark.ci


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
    models = {"rewards.geneval.detector": detector, "rewards.geneval.path": clip}
    report = evaluate_run(str(run_dir), str(metadata), suite="geneval", settings=models)
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
    again = judged_config(run_dir, Judging(str(metadata), suite="geneval"))
    assert (again.evaluation.samples_per_prompt, again.rewards["geneval"].counts) == (4, "correct")

    prompts = config.prompts.model_copy(update={"train": str(metadata)})
    trained = config.model_copy(update={"prompts": prompts})
    with pytest.raises(UserError, match="the suite were trained on, the first being 'a dog'"):
        check_suite(again, trained)
    with pytest.raises(UserError, match=r"the text .* holds NUL"):
        judged_config(
            run_dir,
            Judging(str(metadata), suite="geneval", settings={"rewards.geneval.path": "\0"}),
        )
    (tmp_path / "evaluation.txt").write_text("of the run\n")
    with pytest.raises(UserError, match="has no column 'tag'"):
        check_suite(judged_config(run_dir, Judging(suite="geneval")), config)
    with pytest.raises(UserError, match=r"for prompts of its own, which --prompts names .*'tag'"):
        evaluate_run(str(run_dir), suite="geneval", settings=models)


def test_the_tasks_of_the_suite_are_those_of_its_reward():
    suite = SUITES["geneval"]
    tasks = {"overall": "Overall", **GENEVAL_TASKS}
    assert suite.shown == {f"geneval/{task}": title for task, title in tasks.items()}
    assert suite.columns == GENEVAL_COLUMNS


QUESTIONS = """\
item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,\
question_natural_language
7,A cat on a mat.,,1,0,entity,whole,entity - whole (cat),A cat?
7,A cat on a mat.,,2,0,entity,whole,entity - whole (mat),A mat?
7,A cat on a mat.,,3,"1,2",relation,spatial,"relation - spatial (cat, mat, on)",On it?
vrd1,"A sign, lit.",,1,0,entity,whole,entity - whole (sign),A sign?
vrd1,"A sign, lit.",,2,1,attribute,state,"attribute - other (sign, lit)",Is it lit?
"""


def check_a_blip(run_dir, prompts, tmp_path):
    """Have the questions answered by a BLIP in place of a server's model."""
    from flows.evaluate_run import evaluate_run

    blip = {"rewards.dpg_blip.path": write_blip_vqa(tmp_path / "blip")}
    report = evaluate_run(str(run_dir), prompts, suite="dpg-blip", settings=blip)
    assert (report.num_prompts, report.num_samples) == (2, 8)
    yes = report.by_prompt["dpg_blip/entity_yes"]
    assert report.rewards["dpg_blip/entity"] == pytest.approx((yes[0] + yes[1]) / 3)
    assert report.rewards["dpg_blip/score"] == np.mean(report.by_prompt["dpg_blip/score"])
    console = Console(width=100, record=True)
    print_suite(report, SUITES["dpg-blip"], console)
    _, heads, row = console.export_text().splitlines()
    assert heads.split() == ["Global", "Entity", "Attribute", "Relation", "Other", "Overall"]
    assert row.split()[-1] == f"{100 * report.rewards['dpg_blip/score']:.2f}"
    (tmp_path / "empty").mkdir()
    wrong = {"rewards.dpg_blip.path": str(tmp_path / "empty")}
    with pytest.raises(UserError, match=r"^the BLIP model \S+empty cannot be loaded: Error no"):
        evaluate_run(str(run_dir), prompts, suite="dpg-blip", settings=wrong)


@pytest.mark.nightly
def test_a_run_is_judged_by_dpg_bench(tree, tmp_path, prefect_backend):
    """Held against the questions that a server was asked, and its answers to them."""
    from flows.evaluate_run import evaluate_run
    from flows.post_train import post_train

    (tmp_path / "dpg_bench.csv").write_text(QUESTIONS)
    post_train(RunConfig.model_validate(merged(tree, {"num_iterations": 1})))
    run_dir, answers = only_run(tree), {}

    def answer(request):
        question, ((image,), _) = texts_of(request)[1], images_of(request)
        named = question.split("---\n")[1].strip()
        is_yes = bool(crc32(image.tobytes() + named.encode()) % 3)
        answers.setdefault(image.tobytes(), {})[named] = is_yes
        return says(yes=0.9, no=0.1) if is_yes else says(yes=0.2, no=0.8)

    with judging(answer) as server:
        settings = {"rewards.dpg.url": server.url, "rewards.dpg.model": MODEL}
        prompts = str(tmp_path / "dpg_bench.csv")
        report = evaluate_run(str(run_dir), prompts, suite="dpg", settings=settings)
        assert len(server.requests) == 4 * (3 + 2)
    assert (report.num_prompts, report.num_samples) == (2, 8)
    cats = [own for own in answers.values() if own.keys() == {"A cat?", "A mat?", "On it?"}]
    signs = [own for own in answers.values() if own.keys() == {"A sign?", "Is it lit?"}]
    assert (len(cats), len(signs)) == (4, 4)
    both = [own["A cat?"] and own["A mat?"] and own["On it?"] for own in cats]
    first = np.mean(
        [(own["A cat?"] + own["A mat?"] + on) / 3 for own, on in zip(cats, both, strict=True)]
    )
    lit = [own["A sign?"] and own["Is it lit?"] for own in signs]
    second = np.mean([(own["A sign?"] + on) / 2 for own, on in zip(signs, lit, strict=True)])
    entities = [own[name] for own in cats for name in ("A cat?", "A mat?")]
    entities += [own["A sign?"] for own in signs]
    expected = {
        "dpg/score": (first + second) / 2,
        "dpg/entity": np.mean(entities),
        "dpg/relation": np.mean([own["On it?"] for own in cats]),
        "dpg/attribute": np.mean([own["Is it lit?"] for own in signs]),
    }
    assert {name: report.rewards[name] for name in expected} == pytest.approx(expected)
    assert not {"dpg/global", "dpg/other"} & report.rewards.keys()
    assert 0 < expected["dpg/score"] < expected["dpg/entity"]
    judged = judged_config(run_dir, Judging(prompts, suite="dpg", settings=settings))
    assert judged.evaluation.samples_per_prompt == 4
    with pytest.raises(UserError, match=r"the suite dpg: rewards\.dpg\.url: a value is missing"):
        judged_config(run_dir, Judging(prompts, suite="dpg"))
    check_a_blip(run_dir, prompts, tmp_path)


def phrased(category, prompt, *phrases):
    return {"category": category, "prompt": prompt, "phrases": list(phrases)}


PHRASED = [
    phrased("color", "a red cat and a green dog", "a red cat", "a green dog"),
    phrased("color", "a green bench", "a green bench"),
    phrased("texture", "a big dog", "a big dog"),
    phrased("non_spatial", "a dog is looking at a cat"),
    phrased("non_spatial", "a cat is sitting on a bench"),
    phrased("spatial", "a cat on a bench", "a cat", "a bench"),
    phrased("numeracy", "two cats", "two cats"),
]


def saying_by_chance(answers):
    """Return what says yes or no to each question about each image, and notes it by question."""

    def answer(request):
        question, shown = texts_of(request)[1].split("---\n")[1].strip(), images_of(request)
        seen = b"".join(image.tobytes() for image in shown[0])
        is_yes = bool(crc32(seen + question.encode()) % 3)
        answers.setdefault(question, {})[seen] = is_yes
        return says(yes=0.9, no=0.1) if is_yes else says(yes=0.2, no=0.8)

    return answer


@pytest.mark.operation
def test_a_run_is_judged_by_t2i_compbench(tree, tmp_path, prefect_backend):
    from flows.evaluate_run import evaluate_run
    from flows.post_train import post_train

    prompts, blip = tmp_path / "compbench.jsonl", write_blip_vqa(tmp_path / "blip")
    (tmp_path / "clip").mkdir()
    prompts.write_text("".join(json.dumps(one) + "\n" for one in PHRASED))
    post_train(RunConfig.model_validate(merged(tree, {"num_iterations": 1})))
    run_dir, settings = str(only_run(tree)), {"rewards.blip_vqa.path": blip}
    settings["rewards.clipscore.path"] = write_clip(tmp_path / "clip")
    answers: dict[str, dict[bytes, bool]] = {}
    with judging(saying_by_chance(answers)) as server:
        judge = {"rewards.judged_kinds.url": server.url, "rewards.judged_kinds.model": MODEL}
        report = evaluate_run(
            run_dir, str(prompts), suite="t2i-compbench", settings={**settings, **judge}
        )
        assert len(server.requests) == 10 * (3 + 1), "of the spatial prompt, and of numeracy's"
    assert (report.num_prompts, report.num_samples) == (7, 70)
    scores, cosines = (report.by_prompt[f"{own}/score"] for own in ("blip_vqa", "clipscore"))
    assert len(set(scores[:3])) == 3
    cat, bench, where = (answers[text] for text in (
        "Can this be seen: a cat?", "Can this be seen: a bench?",
        "Is this where things are: a cat on a bench?",
    ))  # fmt: skip
    shares = [(cat[x] + bench[x] + (cat[x] and bench[x] and where[x])) / 3 for x in cat]
    counted = answers["Are there exactly so many: two cats?"]
    expected = {
        "blip_vqa/color": (scores[0] + scores[1]) / 2,
        "blip_vqa/texture": scores[2],
        "judged_kinds/spatial": np.mean(shares),
        "judged_kinds/numeracy": np.mean(list(counted.values())),
        "clipscore/non_spatial": (cosines[3] + cosines[4]) / 2,
    }
    assert 0 < expected["judged_kinds/spatial"] < 1
    assert {name: report.rewards[name] for name in expected} == pytest.approx(expected)
    assert "blip_vqa/shape" not in report.rewards
    assert report.standard_error("blip_vqa/color") > 0
    console = Console(width=100, record=True)
    print_suite(report, SUITES["t2i-compbench"], console)
    _, heads, row, *others = console.export_text().splitlines()
    titles = "Color Shape Texture Spatial (judged) Numeracy (judged) Non-spatial"
    assert " ".join(heads.split()) == titles
    said = " ".join(" ".join(others).split())
    assert said.startswith(
        "judged by a model's answers, and what published numbers are by: spatial (UniDet), "
        "numeracy (UniDet) left out, and the models that it needs: 3d_spatial (UniDet and a model "
        "of depth, or judged_kinds), complex"
    )
    assert row.split() == [f"{value:.4f}" for value in expected.values()]

    prompts.write_text(json.dumps(phrased("spatial", "a cat on a bench", "a cat", "a bench")))
    with pytest.raises(
        UserError, match=r"1 of 1 prompts .* t2i-compbench does not judge.* 'spatial' \(which needs"
    ):
        evaluate_run(run_dir, str(prompts), suite="t2i-compbench", settings=settings)


def of_dimensions(prompt, *dimensions, **info):
    return {"prompt_en": prompt, "dimension": list(dimensions), "auxiliary_info": info}


DIMENSIONS = [
    of_dimensions("a dog", "subject_consistency", "dynamic_degree", "motion_smoothness"),
    of_dimensions("alley", "scene", "background_consistency", scene={"scene": {"scene": "alley"}}),
    of_dimensions("a toilet, frozen", "temporal_flickering"),
    of_dimensions("close up of grapes", "overall_consistency", "aesthetic_quality"),
    of_dimensions("barn", "background_consistency"),
    of_dimensions(
        "a cat, oil paint", "appearance_style", appearance_style={"appearance_style": "oil paint"}
    ),
]


BIRDS = of_dimensions(
    "a bird and a cat", "multiple_objects", multiple_objects={"object": "bird and cat"}
)


def check_judged_dimensions(run_dir, prompts, settings):
    """Have a judge answer for dimensions beside those that no judge is needed for."""
    from flows.evaluate_run import evaluate_run

    prompts.write_text(json.dumps([DIMENSIONS[1], BIRDS]))
    answers: dict[str, dict[bytes, bool]] = {}
    with judging(saying_by_chance(answers)) as server:
        settings |= {"rewards.judged_kinds.url": server.url, "rewards.judged_kinds.model": MODEL}
        report = evaluate_run(run_dir, str(prompts), suite="vbench", settings=settings)
        assert {len(images_of(request)[0]) for request in server.requests} == {2}, "frames"
    bird, cat = (answers[f"Can this be seen: {thing}?"] for thing in ("bird", "cat"))
    found = {
        "judged_kinds/scene": np.mean(list(answers["Is this the scene: alley?"].values())),
        "judged_kinds/multiple_objects": np.mean([bird[x] and cat[x] for x in bird]),
        "consistency/background_consistency": report.by_prompt["consistency/score"][0],
    }
    assert {name: report.rewards[name] for name in found} == pytest.approx(found)
    assert len(bird) == 5
    console = Console(width=200, record=True)
    print_suite(report, SUITES["vbench"], console)
    text = " ".join(console.export_text().split())
    assert "Multiple objects (judged) Scene (judged)" in text
    assert "published numbers are by: multiple_objects (GRiT), scene (Tag2Text) left out" in text


@pytest.mark.operation
def test_a_run_is_judged_by_vbench(tree, tmp_path, prefect_backend):
    from digen_core.models.tiny.pipelines import build_tiny
    from flows.evaluate_run import evaluate_run
    from flows.post_train import post_train

    (tmp_path / "clip").mkdir()
    clip, dino = write_clip(tmp_path / "clip"), write_dino(tmp_path / "dino")
    build_tiny("wan").save_pretrained(tmp_path / "wan")
    save_file({"weight": torch.ones(1, 16), "bias": torch.full((1,), 4.0)}, tmp_path / "head")
    prompts = tmp_path / "VBench_full_info.json"
    prompts.write_text(json.dumps(DIMENSIONS))
    changes = {
        "num_iterations": 1,
        "model": {
            "family": "wan", "path": str(tmp_path / "wan"), "height": 32, "width": 48,
            "num_frames": 5, "max_sequence_length": TOKENS,
        },
        "rewards": {"smooth_rewards:video_brightness": {"takes": "videos"}},
    }  # fmt: skip
    post_train(RunConfig.model_validate(merged(tree, changes)))
    settings = {
        "rewards.subject_consistency.path": dino,
        "rewards.consistency.path": clip,
        "rewards.clipscore.path": clip,
        "rewards.aesthetic": {"path": clip, "head": str(tmp_path / "head")},
    }
    report = evaluate_run(str(only_run(tree)), str(prompts), suite="vbench", settings=settings)
    assert (report.num_prompts, report.num_samples) == (6, 30)
    own = SUITES["vbench"].judges_with(()).values()
    means = {name: report.by_prompt[f"{name}/score"] for name in own}
    clips = means["consistency"]
    expected = {
        "subject_consistency/subject_consistency": means["subject_consistency"][0],
        "consistency/background_consistency": (clips[1] + clips[4]) / 2,
        "temporal_flickering/temporal_flickering": means["temporal_flickering"][2],
        "aesthetic/aesthetic_quality": means["aesthetic"][3],
        "clipscore/appearance_style": means["clipscore"][5],
    }
    assert {name: report.rewards[name] for name in expected} == pytest.approx(expected)
    assert all(0 < expected[name] < 1 for name in list(expected)[:3])
    assert clips[1] != clips[4]
    console = Console(width=80, record=True)
    print_suite(report, SUITES["vbench"], console)
    text = console.export_text().splitlines()
    assert text[0].strip() == "version 1: 30 samples of 6 prompts; the published suite has 416"
    values = [100 * value for value in expected.values()]
    values[3] /= 10  # a tenth of the reward's
    assert text[3].split() == [f"{value:.2f}" for value in values]
    assert "the static filter of temporal_flickering (RAFT)" in " ".join(text[4:])
    assert "(judged)" not in console.export_text()
    check_judged_dimensions(str(only_run(tree)), prompts, settings)


def test_the_table_of_dpg_bench_is_in_percent():
    rewards = {f"dpg/{name}": place / 8 for place, name in enumerate(DPG_CATEGORIES)}
    rewards |= {"dpg/score": 0.8383, "dpg/entity_yes": 3.5, "hps/score": 0.25}
    report = EvaluationReport(version=3, num_prompts=1065, num_samples=4260, rewards=rewards)
    console = Console(width=100, record=True)
    print_suite(report, SUITES["dpg"], console)
    title, heads, row = console.export_text().splitlines()
    assert title.strip() == "version 3: 4260 samples of 1065 prompts"
    columns = ["Global", "Entity", "Attribute", "Relation", "Other", "Overall", "hps/score"]
    assert heads.split() == columns
    assert row.split() == ["0.00", "12.50", "25.00", "37.50", "50.00", "83.83", "0.25"]


def test_the_table_is_that_of_the_paper():
    rewards = {f"geneval/{tag}": place / 8 for place, tag in enumerate(GENEVAL_TASKS)}
    rewards["geneval/overall"] = 0.5
    report = EvaluationReport(version=3, num_prompts=553, num_samples=2212, rewards=rewards)
    console = Console(width=100, record=True)
    print_suite(report, SUITES["geneval"], console)
    title, heads, row = console.export_text().splitlines()
    assert title.strip() == "version 3: 2212 samples of 553 prompts"
    assert heads.split() == " ".join(SUITES["geneval"].shown.values()).split()
    assert len(heads.rstrip()) < 80
    assert row.split() == ["0.50", "0.00", "0.12", "0.25", "0.38", "0.50", "0.62"]
    short = report.model_copy(update={"num_prompts": 5, "rewards": {"geneval/counting": 1.0}})
    print_suite(short, SUITES["geneval"], console)
    assert "of 5 prompts; the published suite has 553" in console.export_text()


@pytest.mark.operation
def test_a_run_is_judged_by_drawbench_and_by_what_can_be_read(tree, tmp_path, prefect_backend):
    """PickScore and ImageReward are tiny ones of their architecture; the reader is the real one."""
    from flows.evaluate_run import evaluate_run
    from flows.post_train import post_train

    post_train(RunConfig.model_validate(merged(tree, {"num_iterations": 1})))
    run_dir = only_run(tree)
    for name in ("clip", "blip"):
        (tmp_path / name).mkdir()
    clip, blip = write_clip(tmp_path / "clip"), write_image_reward(tmp_path / "blip")
    models = {
        "rewards.pickscore.path": str(clip),
        "rewards.pickscore.processor": str(clip),
        "rewards.image_reward.path": str(blip),
        "rewards.image_reward.tokenizer": str(blip / "tokenizer"),
    }
    table = tmp_path / "DrawBench.csv"
    table.write_text('Prompts,Category\nA red car.,Colors\n"A sign, ""Open"".",Text\n')
    report = evaluate_run(str(run_dir), str(table), suite="drawbench", settings=models)
    assert (report.num_prompts, report.num_samples) == (2, 2)
    scores = {name: report.by_prompt[f"{name}/score"] for name in ("pickscore", "image_reward")}
    for name, found in scores.items():
        assert len(set(found)) == 2, f"{name} does not look at prompts and images"
        assert report.rewards[f"{name}/score"] == pytest.approx(sum(found) / 2)
    assert (run_dir / "evaluation" / "drawbench-1.json").exists()

    quotes = tmp_path / "test.txt"
    quotes.write_text('a sign that says "Open"\na shop called "Rye"\n')
    report = evaluate_run(str(run_dir), str(quotes), suite="ocr")
    assert (report.num_prompts, report.num_samples) == (2, 2)
    assert report.rewards["ocr/score"] == 0, "noise says nothing"
    console = Console(width=100, record=True)
    print_suite(report, SUITES["ocr"], console)
    assert "OCR accuracy" in console.export_text()


@pytest.mark.operation
def test_other_rewards_judge_in_place_of_the_runs_own(tree, tmp_path, prefect_backend):
    """With the run's own options where they are named; and a suite takes more beside its own."""
    from flows.evaluate_run import evaluate_run
    from flows.post_train import post_train

    rewards = {"smooth_rewards:brightness": {"pool": "judges"}, "jpeg_compressibility": 0.1}
    changes = {"num_iterations": 1, "cluster.reward_workers": {"judges": 1}, "rewards": rewards}
    post_train(RunConfig.model_validate(merged(tree, changes)))
    run_dir = only_run(tree)
    settings = {"rewards.jpeg_compressibility.weight": 2.0, "evaluation.num_steps": 1}
    report = evaluate_run(str(run_dir), settings=settings)
    assert report.rewards.keys() == {"reward", "jpeg_compressibility/score"}
    assert report.rewards["reward"] == 2 * report.rewards["jpeg_compressibility/score"]
    assert report.wins == {}  # with fewer steps than the base model had
    weighed = evaluate_run(str(run_dir), settings={"rewards.jpeg_compressibility.weight": 2.0})
    after = evaluations_of(run_dir)["after"]
    assert after.wins.keys() == after.rewards.keys()
    name = "jpeg_compressibility/score"
    assert weighed.wins == {name: after.wins[name]}  # the sum is another than the base model's

    config = judged_config(run_dir, Judging(settings={"rewards": {"shapes": 1.0}}))
    assert ([*config.rewards], config.cluster.reward_workers) == (["shapes"], {})
    kept = judged_config(run_dir, Judging(settings={"rewards.smooth_rewards:brightness": 3.0}))
    assert kept.rewards["smooth_rewards:brightness"].pool == "judges"
    assert kept.cluster.reward_workers == {"judges": 1}
    both = judged_config(run_dir, Judging(suite="drawbench", settings={"rewards.clipscore": 1.0}))
    assert [*both.rewards] == ["clipscore", "pickscore", "image_reward"]
    assert {own.on_failure for own in both.rewards.values()} == {"fail"}
    texts = judged_config(run_dir, Judging(suite="ocr"))
    assert ([*texts.rewards], texts.evaluation.samples_per_prompt) == (["ocr"], 1)
    for key in ("train.learning_rate", "model.path", "rollout.group_size", "seed"):
        with pytest.raises(UserError, match=f"{key} cannot be set where a run is judged"):
            Judging(settings={key: 1})


def test_a_table_shows_what_judged_beside_the_suite():
    scores = {"reward": 3.0, "pickscore/score": 0.8, "image_reward/score": 1.2, "hps/score": 0.25}
    report = EvaluationReport(version=3, num_prompts=200, num_samples=200, rewards=scores)
    console = Console(width=100, record=True)
    print_suite(report, SUITES["drawbench"], console)
    title, heads, row = console.export_text().splitlines()
    assert title.strip() == "version 3: 200 samples of 200 prompts"
    assert heads.split() == ["PickScore", "ImageReward", "hps/score"]
    assert row.split() == ["0.80", "1.20", "0.25"]
