"""``digen make-tiny``: random pipelines of every family in the ordinary folder format."""

import pytest
import torch

from deployments.cli import run
from digen_core.data.prompts import Prompt
from digen_core.models.tiny.pipelines import build_tiny
from digen_core.rollout.evaluation import sample_images
from support.families import (
    DISTILLED,
    EDITORS,
    FAMILIES,
    KONTEXT,
    MODELS,
    family_of,
    kind_of,
    load_tiny,
    sliced,
)

MAX_BYTES = 5_000_000
LARGER = {"hunyuan_video15": 25_000_000}  # a layer of 2048 x 2048 in any size


@pytest.mark.ci_but_one
@pytest.mark.parametrize("model", [*MODELS, *EDITORS, KONTEXT, DISTILLED])
def test_make_tiny_writes_a_model_that_the_family_loads(model, tmp_path, capsys):
    folder, family, kind = tmp_path / "new" / model, family_of(model), kind_of(model)
    command = ["make-tiny", family, str(folder), "--seed", "3"]
    assert run([*command, *(["--kind", kind] if kind else [])]) == 0
    said = capsys.readouterr().out
    assert f"--model.family {family} --model.path {folder}" in said
    assert ("digen train shapes_edit" in said) == (model in (*EDITORS, KONTEXT))
    assert ("shapes_edit_train.jsonl" in said) == (model == DISTILLED)
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < LARGER.get(
        family, MAX_BYTES
    )
    policy = load_tiny(str(folder), model)
    built = build_tiny(family, kind=kind, seed=3)
    for name in ("transformer", "vae"):
        loaded = getattr(policy.pipeline, name).state_dict()
        assert all(torch.equal(w, loaded[k]) for k, w in getattr(built, name).state_dict().items())
    prompt = "A red CIRCLE, 2 blue squares!"
    for name, part in built.components.items():
        if name.startswith("tokenizer"):
            ids = part(prompt).input_ids
            assert getattr(policy.pipeline, name)(prompt).input_ids == ids
            assert part.unk_token_id is None or part.unk_token_id not in ids[:-1]
            assert len(ids) >= len(prompt.replace(" ", ""))


def test_make_tiny_writes_into_an_empty_folder_and_no_other(tmp_path, capsys):
    assert run(["make-tiny", "wan", str(tmp_path)]) == 0
    assert run(["make-tiny", "wan", str(tmp_path)]) == 2
    assert "exists already; remove it or choose another folder" in capsys.readouterr().err


def test_kinds_are_those_of_the_family(tmp_path, capsys):
    assert run(["make-tiny", "wan", str(tmp_path / "a"), "--kind", "x"]) == 2
    assert "--kind is x; of wan use ti2v" in capsys.readouterr().err
    assert run(["make-tiny", "sd3", str(tmp_path / "a"), "--kind", "ti2v"]) == 2
    assert "--kind is ti2v; of sd3 use none" in capsys.readouterr().err


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", sliced(FAMILIES))
def test_a_medium_model_is_one_that_the_family_runs(family, tmp_path):
    assert run(["make-tiny", family, str(tmp_path / family), "--size", "medium"]) == 0
    policy = load_tiny(str(tmp_path / family), family)
    num_parameters = sum(w.numel() for w in policy.transformer.parameters())
    assert 10e6 < num_parameters < 50e6
    tiny = sum(w.numel() for w in build_tiny(family).transformer.parameters())
    # Z-Image embeds the time in 1024 channels, whatever the size, HunyuanVideo 1.5 ByT5's states
    assert num_parameters > {"z_image": 25, "hunyuan_video15": 7}.get(family, 50) * tiny
    images = sample_images(
        policy, [*map(Prompt, ["a dog"])], range(1), num_samples=1, num_steps=2, seed=0
    )
    assert images.isfinite().all()


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", FAMILIES)
def test_the_seed_decides_the_weights_and_the_global_state_is_left_alone(family):
    state = torch.get_rng_state()
    first, same, other = (build_tiny(family, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    first, same, other = (
        next(iter(pipeline.transformer.parameters())) for pipeline in (first, same, other)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
