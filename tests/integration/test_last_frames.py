"""Videos whose last frame is given, too, through Prefect and Dask: the serial loop's weights."""

import json

import pytest

from digen_core.transport.samples import read_samples
from support.edits import picture
from support.families import NEGATIVE, OF_KIND, TOKENS
from support.layout_runs import Case, check_weights

pytestmark = [pytest.mark.slow, pytest.mark.layouts]


@pytest.mark.parametrize(
    ("case", "model", "numbers"),
    [
        pytest.param(Case("tsp", (2, 1), 4, 8), "wan-i2v-a14b", {1, 2}, marks=pytest.mark.families),
        (Case("elastic", (2, 1), 2, 3, helping=True), "wan-flf2v", {2}),
    ],
    ids=str,
)
def test_weights_equal_the_serial_reference(
    case, model, numbers, tiny_families, run_layout, tmp_path
):
    """Where both are taken some prompts have one, and some do not; rewards see all there are."""
    rows = []
    for number in range(8):
        images = [f"{number}-{end}.png" for end in range(number % 2 + 1 if 1 in numbers else 2)]
        for seed, name in enumerate(images):
            (tmp_path / name).write_bytes(picture(number + 9 * seed))
        text = ("a red circle", "two blue squares")[number // 2 % 2]
        rows.append(json.dumps({"prompt": text, "image": images}))
    (tmp_path / "films.jsonl").write_text("\n".join(rows))
    run = run_layout(
        case,
        **{
            "model.family": "wan",
            "model.path": tiny_families[model],
            "model.num_frames": 5,
            "model.max_sequence_length": TOKENS,
            "model.max_source_images": 2,
            "model.guidance_scale": 3.0,
            "model.negative_prompt": NEGATIVE,
            **{f"model.{name}": value for name, value in OF_KIND.get(model, {}).items()},
            "prompts": {
                "train": str(tmp_path / "films.jsonl"),
                "image_column": "image",
                "evaluation_fraction": 0.25,
            },
            "rewards": {"smooth_rewards:like_all_sources": {"weight": 30.0}},
            "algorithm": {"trained_fraction": 1.0},
        },
    )
    # Parts of Wan are float32, which round otherwise with another number of samples.
    check_weights(run, 1e-6 if case.fragment == case.pack else 1e-4)
    found = read_samples(run.folder / "samples").to_pylist()
    assert {len(row["source_images"] or ()) for row in found} <= {0, *numbers}
