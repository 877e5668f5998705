"""The embedded editor: how it is pretrained, and that it half knows the edits of its world."""

from pathlib import Path

import torch

from digen_core.config.load import load_config
from digen_core.data.prompts import evaluation_prompts
from digen_core.inputs.shipped import located
from digen_core.models.families import adapter_of
from digen_core.models.policy import ALL_PARTS
from digen_core.models.tiny.pretrain import PretrainConfig
from digen_core.models.tiny.pretrain_edits import pretrain_edits
from digen_core.preflight.model import check_model_folder
from digen_core.rewards.asked import Asked
from digen_core.rewards.shapes_edit import shapes_edit
from digen_core.rollout.evaluation import sample_images

MAX_BYTES = 3 * 2**20


def test_pretraining_is_reproducible_and_saves_an_editor(tmp_path):
    config = PretrainConfig(num_images=8, flow_steps=2, flow_batch_size=4)
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    steps = []
    for run in ("a", "b"):
        pretrain_edits(
            tmp_path / run,
            config=config,
            num_threads=1,
            on_progress=lambda phase, step, loss: steps.append((phase, step)),
        )
    torch.set_rng_state(random_state)
    torch.set_num_threads(threads)
    one, two = (
        {path.relative_to(tmp_path / run): path for path in (tmp_path / run).rglob("*.safetensors")}
        for run in ("a", "b")
    )
    assert one.keys() == two.keys()
    assert len(one) == 4
    for name, path in one.items():
        assert path.read_bytes() == two[name].read_bytes()
    assert steps == [("flow", 2)] * 2
    model = load_config(Path(located("digen:configs/shapes_edit.toml"))).model
    check_model_folder(model.model_copy(update={"path": str(tmp_path / "a")}))


def test_the_committed_editor_is_small_and_names_no_machine():
    files = [
        path for path in Path(located("digen:models/shapes_edit")).rglob("*") if path.is_file()
    ]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    settings = [path.read_text() for path in files if path.name.endswith("config.json")]
    assert not any("_name_or_path" in text for text in settings)


def test_the_committed_editor_half_knows_the_edits():
    config = load_config(Path(located("digen:configs/shapes_edit.toml")))
    policy = adapter_of("flux").load(config.model, ALL_PARTS)
    prompts = evaluation_prompts(config)[::3]
    images = sample_images(policy, prompts, range(len(prompts)), num_samples=1, num_steps=8, seed=0)
    asked = Asked.of(prompts, config.model.size, images.device)
    found = shapes_edit(images, asked.prompts, asked.sources)
    assert 0.2 <= found["exact"].mean().item() <= 0.7
    assert found["place"].mean().item() > 0.8  # the rest of the image stays
