"""Sizes in which a model cannot be shown source images, told before anything starts."""

import json

import pytest

from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.preflight.run import check_inputs
from digen_core.preflight.shown import check_shown
from support.edits import picture

EDIT = {"family": "qwen_image", "path": "Qwen/Qwen-Image-Edit", "source_image": True}


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"height": 2048, "width": 2048}, "5864 tokens with the source images', but .* for 4032"),
        ({"height": 16, "width": 3216}, "16 x 3216; this model is shown images of at most 200"),
        ({"sizes": [[512, 512, 1], [16, 3216, 1]]}, "16 x 3216; this model is shown images of"),
    ],
)
def test_a_size_that_workers_would_refuse_is_refused(size, message):
    with pytest.raises(ConfigError, match=message) as found:
        check_shown(ModelConfig.model_validate({**EDIT, **size}), [])
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"height": 1024, "width": 1024, "sizes": [[512, 512, 1]]},
        {"path": "somebody/unknown", "height": 2048, "width": 2048},  # which is not known
        {"source_image": False, "path": "Qwen/Qwen-Image", "height": 2048, "width": 2048},
    ],
)
def test_what_fits_or_is_not_known_is_left_to_the_loading(changes):
    check_shown(ModelConfig.model_validate({**EDIT, **changes}), [])


def test_a_run_is_told_of_it(tiny_families, tmp_path):
    (tmp_path / "a.png").write_bytes(picture(0))
    rows = [{"prompt": f"make it {colour}", "image": "a.png"} for colour in ("red", "blue")]
    (tmp_path / "edits.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = {"family": "qwen_image", "path": tiny_families["qwen_image-edit"]}
    tree = {
        "model": {**model, "height": 32, "width": 32},
        "prompts": {
            "train": str(tmp_path / "edits.jsonl"),
            "image_column": "image",
            "evaluation_fraction": 0.5,
        },
        "rewards": {"jpeg_compressibility": 1.0},
        "rollout": {"prompts_per_iteration": 1},
    }
    check_inputs(RunConfig.model_validate(tree))
    tree["model"] |= {"height": 16, "width": 3216}
    with pytest.raises(ConfigError, match="this model is shown images of at most 200 : 1"):
        check_inputs(RunConfig.model_validate(tree))
