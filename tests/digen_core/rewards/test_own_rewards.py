import sys

import pytest
import torch

from digen_core.config.rewards.own import FunctionConfig
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.rewards import REWARDS, reward_functions
from digen_core.rewards.own import import_reward, own_reward
from digen_core.rewards.scoring import score_images

CPU = torch.device("cpu")
MODULE = """\
import torch

def bright(images, prompts):
    return images.mean(dim=(1, 2, 3))

class Judge:
    def __init__(self, device, scale=1.0):
        self.device, self.scale = device, scale
    def __call__(self, images, prompts):
        return self.scale * bright(images, prompts)

def matches(images, prompts, metadata):
    found = [row["target"] == prompt for row, prompt in zip(metadata, prompts, strict=True)]
    return torch.tensor(found).double()

class Network(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
    def forward(self, images, prompts, metadata=None):
        return matches(images, prompts, metadata)

class Broken:
    def __init__(self, device):
        raise FileNotFoundError("weights.pt")

class Mute:
    def __init__(self, device):
        pass
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "judges_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("judges_of_mine", None)


def config(name, **options):
    return FunctionConfig(function=f"judges_of_mine:{name}", options=options)


def test_a_function_with_a_parameter_metadata_gets_what_the_rows_say():
    configs = {"a": config("matches"), "b": config("bright"), "c": config("Network")}
    functions = {name: own_reward(found, CPU) for name, found in configs.items()}
    rows = [{"target": "a"}, {"target": "c"}]
    videos = torch.full((2, 5, 3, 4, 4), 0.5)
    for images in (videos[:, 0], videos):
        found = score_images(functions, configs, images, ["a", "b"], rows)
        assert found["a/score"].tolist() == found["c/score"].tolist() == [1.0, 0.0]
        assert found["reward"].tolist() == [2.5, 0.5]  # bright does without


def test_a_function_is_taken_as_it_is():
    judge = own_reward(config("bright"), CPU)
    assert judge(torch.full((2, 3, 4, 4), 0.5), ["a", "b"]).tolist() == [0.5, 0.5]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_compiled_function_is_called_with_images_and_prompts():
    @torch.jit.script
    def bright(images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        return images.mean(dim=(1, 2, 3)) * len(prompts)

    found = score_images({"a": bright}, {"a": config("bright")}, torch.ones(2, 3, 4, 4), ["a", "b"])
    assert found["a/score"].tolist() == [2.0, 2.0]


def test_a_class_is_made_once_with_its_options_on_the_worker_s_device():
    judge = own_reward(config("Judge", scale=3.0), torch.device("meta"))
    assert (judge.device.type, judge.scale) == ("meta", 3.0)
    assert judge(torch.ones(1, 3, 2, 2), ["a"]).tolist() == [3]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (config("bright", scale=2.0), "is a function, but has the options {'scale': 2.0}; only a"),
        (config("Judge", size=2), "'judges_of_mine:Judge' with the options .* raised TypeError"),
        (config("Broken"), "'judges_of_mine:Broken' .* raised FileNotFoundError: weights.pt"),
        (config("Mute"), "objects of 'judges_of_mine:Mute' cannot be called; add __call__"),
    ],
)
def test_what_cannot_be_made_is_refused(found, message):
    with pytest.raises(UserError, match=message):
        own_reward(found, CPU)


def test_a_module_that_starts_a_run_when_it_is_imported_is_refused(tmp_path):
    """As a script without a guard that has its reward beside what starts the run."""
    text = "from deployments.local import run_training\nrun_training(None)\n"
    (tmp_path / "script_of_mine.py").write_text(text)
    with pytest.raises(UserError, match="script_of_mine starts a run when it is imp"):
        import_reward("script_of_mine:redness")


def test_every_type_of_reward_can_be_made():
    from digen_core.config.rewards import REWARD_TYPES

    assert {*REWARDS, "ranked", "given"} == {*REWARD_TYPES}  # those two are not called


def test_rewards_keep_their_names_and_order():
    tree = {"b": {"type": "shapes"}, "judges_of_mine:Judge": 2.0, "a": {"type": "motion"}}
    functions = reward_functions(RunConfig.model_validate({"rewards": tree}).rewards, CPU)
    assert list(functions) == ["b", "judges_of_mine:Judge", "a"]
