"""Pre-flight checks of the model: a config that cannot work fails before anything starts.

Each check raises ConfigError with one line: what is wrong, its value, and what to do.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import (
    JSON_BYTES,
    UnreadableError,
    read_json,
    read_json_object,
    require_file,
    shown,
)
from digen_core.inputs.weight_files import (
    layers_of,
    named_parts,
    shapes_in,
    shapes_in_folder,
    variant_of,
)
from digen_core.models.compiler import require_compiler
from digen_core.models.expert_names import PARTS, check_experts, lone_expert
from digen_core.models.image_size import check_local_size, read_settings
from digen_core.models.lora_targets import check_targets, learning
from digen_core.models.pipeline.few_steps import check_few_steps
from digen_core.models.registers import check_local_registers
from digen_core.planning.model_settings import settings_folder
from digen_core.preflight.gangs import check_gangs, check_targets_of_stages
from digen_core.preflight.hub import check_source, hub_failure

_PART: Final = re.compile(r"\w{1,100}")  # a subfolder of a pipeline
_VOCABULARIES: Final = {"tokenizer.json", "vocab.json", "spiece.model"}
_ENDINGS: Final = (".safetensors", ".bin", ".index.json")  # of files of weights
_WITHOUT_WEIGHTS: Final = ("tokenizer", "processor", "scheduler")
_OF_BYTES: Final = "ByT5Tokenizer"  # whose tokens are bytes


def check_model(config: RunConfig) -> None:
    """Check the model of a run, what it starts from and what is attached to it, unloaded.

    Raises:
        ConfigError: something is missing or does not fit.
    """
    model, here = config.model, config.cluster.address is None
    if Path(model.source).is_dir():
        check_model_folder(model)
        if config.train.lora is not None:
            _check_targets(model, config.train.lora.targets)
    else:
        _check_hub_id(model, here=here)
    _check_adapters(model, here=here)
    check_device(model, here=here)
    if here:
        _check_number(model.device)
        check_compiler(model)
        check_cuda_graphs(config)
    check_gangs(config)
    _check_few_steps(config)
    if Path(model.source).is_dir() and config.train.lora is not None and config.parallel.has_stages:
        check_targets_of_stages(config, shapes_in_folder(Path(model.source) / "transformer"))


def _check_few_steps(config: RunConfig) -> None:
    """Check what is asked of a model of few steps, whose settings are here or shipped."""
    try:
        _, transformer = read_settings(settings_folder(config.model.path))
    except (UserError, OSError, ValueError):
        return
    check_few_steps(config, transformer)


def check_model_folder(model: ModelConfig) -> None:
    """Check that a local model folder has what its family needs.

    Raises:
        ConfigError: the folder is missing, incomplete, damaged, of another family or for other
            sizes.
    """
    folder = Path(model.source)
    index_file = folder / "model_index.json"
    if not index_file.exists():
        raise ConfigError(
            f"model.path {model.path} has no model_index.json; give the top folder of a diffusers "
            "pipeline, as save_pretrained writes it"
        )
    index: Any = read_json(index_file, "the model's index")
    model.require_pipeline(index)
    variant = variant_of(folder)
    for name, component in named_parts(index).items():
        _check_part(folder, name, has_words=_OF_BYTES not in component)
        _check_weights(folder / name, variant)
    has_two = index.get("boundary_ratio") is not None
    if has_two and None in index.get(PARTS["low"], [None]):
        raise ConfigError(lone_expert(model.path))
    check_experts(model, has_two=has_two)
    for size in (model.size, *model.sizes):
        check_local_size(model.at_size(size))
    check_local_registers(model)


def _check_targets(model: ModelConfig, targets: Sequence[str]) -> None:
    layers = layers_of(shapes_in_folder(Path(model.source) / "transformer"))
    layers = learning(layers, FAMILIES[model.family].idle)
    if layers:  # there are other formats of weights
        check_targets(targets, layers)


def _check_part(folder: Path, name: str, *, has_words: bool) -> None:
    """Check that a part of a pipeline is there and not damaged.

    Tokenizers need a closer look: without a vocabulary transformers makes an empty one, silently.

    Args:
        folder: of the pipeline.
        name: of the part.
        has_words: whether it has a vocabulary, if it is a tokenizer.
    """
    if not _PART.fullmatch(name):
        raise ConfigError(
            f"model.path {folder} has a model_index.json with the part {shown(name)}, which is no "
            "name of a subfolder; copy or download the model again"
        )
    found = {file.name for file in (folder / name).glob("*")}
    lack = "" if found else f"the subfolder {name}"
    if found and name.startswith("tokenizer") and has_words and not found & _VOCABULARIES:
        lack = f"a vocabulary in {name}: {' or '.join(sorted(_VOCABULARIES))}"
    if name == "scheduler" and "scheduler_config.json" not in found:
        lack = "scheduler/scheduler_config.json"
    if "config.json" not in found and any(file.endswith(_ENDINGS) for file in found):
        lack = f"{name}/config.json"  # transformers would take the class's own sizes
    if lack:
        raise ConfigError(
            f"model.path {folder} lacks {lack}, which its model_index.json asks for; copy or "
            "download the model again"
        )
    for file in (folder / name).glob("*.json"):  # settings, vocabularies, indices of weights
        _read_object(file)
    for file in (folder / name).glob("*.model"):
        _check_pieces(file)
    shapes_in_folder(folder / name)


def _read_object(file: Path) -> dict[str, Any]:
    try:
        return read_json_object(file, "the model's")
    except UnreadableError as error:
        raise ConfigError(f"{error}; copy or download it again") from error


def _check_pieces(file: Path) -> None:
    """Check that the vocabulary of a SentencePiece tokenizer is whole."""
    from sentencepiece import SentencePieceProcessor

    require_file(file, "the vocabulary", JSON_BYTES)
    try:
        SentencePieceProcessor().LoadFromFile(str(file))
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{file} is no whole SentencePiece vocabulary; copy or download it again"
        ) from error


def _check_weights(part: Path, variant: str | None) -> None:
    """Check that a part has all files of its weights: those of a variant, if it has any of it.

    A part with a config.json is a model, which has some; of others some have such a file, too.
    """
    is_model = (part / "config.json").is_file() and not part.name.startswith(_WITHOUT_WEIGHTS)
    if is_model and not any(any(part.glob(f"*{ending}")) for ending in _ENDINGS):
        raise ConfigError(f"{part} holds no weights; copy or download the model again")
    ending = f".{variant}" if variant and any(part.glob(f"*.{variant}*")) else ""
    for index in part.glob(f"*.safetensors.index{ending}.json"):
        _check_shards(index)


def _check_shards(index: Path) -> None:
    """Check that the files are there over which an index spreads weights."""
    weights = _read_object(index).get("weight_map")
    if not isinstance(weights, dict):
        raise ConfigError(f"{index} has no weight_map; copy or download it again")
    for name in sorted(
        set(map(str, weights.values())) - {file.name for file in index.parent.iterdir()}
    ):
        raise ConfigError(f"{index.parent / name} is missing; copy or download the model again")


def explain_load_error(model: ModelConfig, error: BaseException) -> str:
    """Say in one line why loading the model failed and what to do.

    Args:
        model: its config.
        error: what from_pretrained, or the check of the image size, raised.
    """
    label = f"model.path {model.path}"
    reason = " ".join(str(error).split()) or type(error).__name__
    if "does not appear to have a file named" in reason and not Path(model.source).is_dir():
        error = ConnectionError(reason)  # that is how diffusers puts it
    return hub_failure(label, model.revision, error) or f"{label} cannot be loaded: {reason[:300]}"


def _check_hub_id(model: ModelConfig, *, here: bool) -> None:
    path = model.path
    if Path(model.source).exists():
        raise ConfigError(f"model.path {path} is a file; give the folder of a diffusers pipeline")
    check_source(f"model.path {path}", path, ["model_index.json"], model.revision, here=here)


def _check_adapters(model: ModelConfig, *, here: bool) -> None:
    for name, adapter in model.adapters.items():
        key, path = f"model.adapters.{name}", Path(adapter.path)
        if not path.exists():
            label = f"{key}.path {adapter.path}"
            files = [adapter.file or "pytorch_lora_weights.safetensors"]
            what = "a folder or file"
            check_source(label, adapter.path, files, adapter.revision, here=here, what=what)
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
        if found:
            shapes_in(found[0] if adapter.file is None or path.is_file() else path / adapter.file)


def check_compiler(model: ModelConfig) -> None:
    """Check for the compiler that a model on this machine takes, if it is to be compiled.

    Raises:
        ConfigError: it is not there.
    """
    if model.compile:
        from digen_core.models.policy import resolve_device  # with torch

        require_compiler(resolve_device(model.device).type)


def check_cuda_graphs(config: RunConfig) -> None:
    """Check that a model on this machine has CUDA graphs, if rollouts are to have them.

    Raises:
        ConfigError: its device has none.
    """
    if config.rollout.cuda_graphs:
        from digen_core.models.pipeline.cuda_graphs import require_graphs
        from digen_core.models.policy import resolve_device

        require_graphs(resolve_device(config.model.device))


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


def _check_number(name: str) -> None:
    """Check that a device's name is one that the workers which a run starts here have.

    Raises:
        ConfigError: it is not.
    """
    if name.startswith("cuda:") and name != "cuda:0":
        raise ConfigError(
            f"model.device is {name!r}, but each worker that a run starts sees one GPU, as number "
            "0; use cuda, and choose GPUs by the variable CUDA_VISIBLE_DEVICES"
        )


def _num_devices(kind: str) -> int:
    """Return how many devices of a type of torch's, such as cuda or mps, this machine has."""
    import torch

    try:
        return int(torch.get_device_module(kind).device_count())
    except RuntimeError:  # torch computes on no device of that type, such as meta
        return 0
