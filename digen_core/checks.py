"""What can be known to be wrong before anything starts: files, folders, names, devices.

Each check raises ConfigError with one line: what is wrong, its value, and what to do. Checks that
need no torch come first, so that the usual mistakes show at once.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

from digen_core.compiler import require_compiler
from digen_core.config import ConfigError, RunConfig
from digen_core.data import Prompt, evaluation_prompts, normal_text, train_prompts
from digen_core.hub import is_hub_id
from digen_core.image_size import check_local_size
from digen_core.model_config import Family, ModelConfig
from digen_core.reward_checks import check_rewards

FAMILY_PIPELINES: Final[dict[Family, str]] = {
    "flux": "FluxPipeline",
    "sd3": "StableDiffusion3Pipeline",
    "qwen_image": "QwenImagePipeline",
    "wan": "WanPipeline",
    "hunyuan_video": "HunyuanVideoPipeline",
}
"""The `_class_name` that a model folder's model_index.json must have, by family."""

_VOCABULARIES: Final = {"tokenizer.json", "vocab.json", "spiece.model"}


def check_inputs(config: RunConfig) -> None:
    """Check all that a run reads and writes, without loading the model.

    Raises:
        ConfigError: something is missing or does not fit; the message is one line.
    """
    train, evaluation = train_prompts(config), evaluation_prompts(config)
    _check_held_out(config, train, evaluation)
    _check_enough_prompts(config, train)
    check_model_folder(config.model)
    _check_adapters(config.model)
    _check_runs_dir(Path(config.tracking.runs_dir))
    check_rewards(config, train, evaluation)
    here = config.cluster.address is None
    check_device(config.model, here=here)
    if here:
        check_compiler(config.model)


def check_model_folder(model: ModelConfig) -> None:
    """Check that a local model folder has what its family needs; hub ids are left to the loading.

    Raises:
        ConfigError: the folder is missing, incomplete, of another family or for other sizes.
    """
    folder = Path(model.path)
    if not folder.is_dir():
        _check_hub_id(model.path)
        return
    index_file = folder / "model_index.json"
    try:
        index: Any = json.loads(index_file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"model.path {model.path} has no model_index.json; give the top folder of a diffusers "
            "pipeline, as save_pretrained writes it"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: cannot read {index_file}: {error}") from error
    wanted = FAMILY_PIPELINES[model.family]
    found = index.get("_class_name") if isinstance(index, dict) else None
    if found != wanted:
        raise ConfigError(
            f"model.path {model.path} holds a {found}, but model.family {model.family!r} needs a "
            f"{wanted}; give a folder saved from one"
        )
    for name, component in index.items():
        if isinstance(component, list) and None not in component:
            _check_part(folder, name)
    for size in (model.size, *model.sizes):
        check_local_size(model.at_size(size))


def _check_part(folder: Path, name: str) -> None:
    """Check that a part of a pipeline is there.

    Tokenizers need a closer look: without a vocabulary transformers makes an empty one, silently.
    """
    found = {file.name for file in (folder / name).glob("*")}
    lack = "" if found else f"the subfolder {name}"
    if found and name.startswith("tokenizer") and not found & _VOCABULARIES:
        lack = f"a vocabulary in {name}: {' or '.join(sorted(_VOCABULARIES))}"
    if lack:
        raise ConfigError(
            f"model.path {folder} lacks {lack}, which its model_index.json asks for; copy or "
            "download the model again"
        )


def explain_load_error(config: RunConfig, error: BaseException) -> str:
    """Say in one line why loading the model failed and what to do.

    Args:
        config: of the run.
        error: what from_pretrained, or the check of the image size, raised.
    """
    model = f"model.path {config.model.path}"
    kinds = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    reason = " ".join(str(error).split()) or type(error).__name__
    if "HFValidationError" in kinds:
        return f"{model} is neither a folder nor a hub id such as org/name"
    if "GatedRepoError" in kinds:
        return f"{model} is gated: accept its licence on the hub and log in with 'hf auth login'"
    if "RevisionNotFoundError" in kinds:
        return f"{model} has no revision {config.model.revision!r}; correct model.revision"
    if "RepositoryNotFoundError" in kinds:
        return f"{model} is no folder here and no model on the hub; correct it"
    # The causes get lost when an error is pickled, so its words count as well.
    is_absent = "does not appear to have a file named" in reason
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError"} or (
        is_absent and not Path(config.model.path).is_dir()
    ):
        return (
            f"{model} is no folder here, not in the hub's cache, and the hub cannot be reached; "
            "download the model first, or correct the path"
        )
    return f"{model} cannot be loaded: {reason[:300]}"


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error and those it came from."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _check_hub_id(path: str) -> None:
    if Path(path).exists():
        raise ConfigError(f"model.path {path} is a file; give the folder of a diffusers pipeline")
    if not is_hub_id(path):
        raise ConfigError(
            f"model.path {path} is neither a folder (seen from {Path.cwd()}) nor a hub id such as "
            "org/name; correct it"
        )


def _check_adapters(model: ModelConfig) -> None:
    for name, adapter in model.adapters.items():
        key, path = f"model.adapters.{name}", Path(adapter.path)
        if not path.exists() and not is_hub_id(adapter.path):
            raise ConfigError(
                f"{key}.path {adapter.path} is neither a folder or file (seen from {Path.cwd()}) "
                "nor a hub id such as org/name; correct it"
            )
        found = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
        if path.exists() and not found:
            raise ConfigError(f"{key}.path {adapter.path} holds no safetensors file")
        if adapter.file is not None and path.is_dir() and not (path / adapter.file).is_file():
            raise ConfigError(f"{key}.file {adapter.file} is not in {adapter.path}")
        if adapter.file is None and len(found) > 1:
            raise ConfigError(
                f"{key}.path {adapter.path} has several safetensors files, among them "
                f"{found[0].name}; name one as {key}.file"
            )


def _check_held_out(config: RunConfig, train: list[Prompt], evaluation: list[Prompt]) -> None:
    trained = {normal_text(prompt.text) for prompt in train}
    shared = [prompt for prompt in evaluation if normal_text(prompt.text) in trained]
    if not shared:
        return
    what = (
        f"{len(shared)} of {len(evaluation)} evaluation prompts are trained on, the first being "
        f"{shared[0].text!r}"
    )
    if config.prompts.evaluation is None:
        raise ConfigError(f"{what}; put all its rows into one split ({shared[0].origin})")
    raise ConfigError(
        f"{what}; keep them in one of {config.prompts.train} and {config.prompts.evaluation} only"
    )


def _check_enough_prompts(config: RunConfig, train: list[Prompt]) -> None:
    wanted = config.rollout.prompts_per_iteration
    if wanted > len(train):
        raise ConfigError(
            f"rollout.prompts_per_iteration is {wanted}, but {config.prompts.train} has only "
            f"{len(train)} prompts to train on; use at most {len(train)}"
        )


def _check_runs_dir(runs_dir: Path) -> None:
    existing = runs_dir
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(f"tracking.runs_dir is {runs_dir}, but {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"tracking.runs_dir is {runs_dir}, but {existing} is not writable")


def check_compiler(model: ModelConfig) -> None:
    """Check for the compiler that a model on this machine takes, if it is to be compiled.

    Raises:
        ConfigError: it is not there.
    """
    name = model.device
    if not model.compile:
        return
    if name == "auto":
        import torch

        name = "cuda" if torch.cuda.is_available() else "cpu"
    require_compiler(name.partition(":")[0])


def check_device(model: ModelConfig, *, here: bool) -> None:
    """Check the name of a model's device.

    Args:
        model: with the name.
        here: check also that this machine has the device.

    Raises:
        ConfigError: it is no name of a device, or of none here.
    """
    name = model.device
    if name in ("auto", "cpu"):
        return
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"model.device {name!r} is none; use auto, cpu or cuda") from error
    if not here:
        return
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"model.device is {name!r}, but torch sees no CUDA device here; use auto or cpu"
        )
    count = _num_devices(device.type)
    if (device.index or 0) >= count:
        raise ConfigError(
            f"model.device is {name!r}, but torch sees {count or 'no'} such devices here; "
            "use auto, cpu or cuda"
        )


def _num_devices(kind: str) -> int:
    """Return how many devices of a type of torch's, such as cuda or mps, this machine has."""
    import torch

    try:
        return int(torch.get_device_module(kind).device_count())
    except RuntimeError:  # torch computes on no device of that type, such as meta
        return 0
