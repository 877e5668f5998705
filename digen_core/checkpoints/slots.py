"""Slots: where other programs have the layers that diffusers' transformers have.

Names are as they stand in these files on GitHub, from which only the names are taken:

| Comfy-Org/ComfyUI        comfy/lora.py, comfy/utils.py, comfy/ldm/
| kohya-ss/sd-scripts      networks/lora_flux.py, lora_sd3.py
| kohya-ss/musubi-tuner    networks/lora.py, lora_wan.py, lora_qwen_image.py, lora_flux_2.py,
|                          lora_zimage.py

kohya's scripts load LoRAs of blocks, and of a few layers outside. ComfyUI knows diffusers' names of
flux and sd3, and of the other families those of the published models, which are diffusers' own for
qwen_image; of z_image it knows diffusers' in their place, too.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Target = Literal["comfyui", "kohya"]

Table = dict[str, str]
"""Names of layers to their slots. # is the number of a block; what stands behind a colon is a part
of a slot that several layers have together, from the top."""


class Slot(NamedTuple):
    """Where a layer is in a program's model."""

    layer: str
    part: int = 0
    """Of the layers that are one matrix there, from the top."""

    heights: tuple[int, ...] = (1,)
    """Of those parts, in inputs of the layer."""

    swapped: bool = False
    """Whether shift and scale, the halves of what it returns, are in the other order there."""


def _parts(layer: str, own: str) -> Table:
    """Return the layers for queries, keys and values, which are one matrix."""
    return {layer.format(name): f"{own}:{part}" for part, name in enumerate("qkv")}


def _ff(layer: str, first: str, second: str) -> Table:
    return {f"{layer}.net.0.proj": first, f"{layer}.net.2": second}


def _linear(layer: str, first: str, second: str) -> Table:
    return {f"{layer}.linear_1": first, f"{layer}.linear_2": second}


def _numbered(table: Table, blocks: str, own: str) -> Table:
    return {f"{blocks}.#.{layer}": f"{own}.#.{name}" for layer, name in table.items()}


def _two_streams(qkv: str, out: str, mod: str, ff_in: str, ff_out: str) -> Table:
    """Return the layers of blocks of two streams, by what stands behind the name of a stream."""
    table = {
        **_parts("attn.to_{}", f"img{qkv}"),
        **_parts("attn.add_{}_proj", f"txt{qkv}"),
        "attn.to_out.0": f"img{out}",
        "attn.to_add_out": f"txt{out}",
        "norm1.linear": f"img{mod}",
        "norm1_context.linear": f"txt{mod}",
        **_ff("ff", f"img{ff_in}", f"img{ff_out}"),
        **_ff("ff_context", f"txt{ff_in}", f"txt{ff_out}"),
    }
    return _numbered(table, "transformer_blocks", "double_blocks")


def _one_stream(mod: str) -> Table:
    table = {
        **_parts("attn.to_{}", "linear1"),
        "proj_mlp": "linear1:3",
        "proj_out": "linear2",
        "norm.linear": f"modulation.{mod}",
    }
    return _numbered(table, "single_transformer_blocks", "single_blocks")


def _embedders(prefix: str, own: Mapping[str, str], first: str, second: str) -> Table:
    table: Table = {}
    for name, slot in own.items():
        table |= _linear(f"{prefix}.{name}_embedder", f"{slot}{first}", f"{slot}{second}")
    return table


_JOINT: Final = _numbered(
    {
        **_parts("attn.to_{}", "x_block.attn.qkv"),
        **_parts("attn2.to_{}", "x_block.attn2.qkv"),
        **_parts("attn.add_{}_proj", "context_block.attn.qkv"),
        "attn.to_out.0": "x_block.attn.proj",
        "attn2.to_out.0": "x_block.attn2.proj",
        "attn.to_add_out": "context_block.attn.proj",
        "norm1.linear": "x_block.adaLN_modulation.1",
        "norm1_context.linear": "context_block.adaLN_modulation.1",
        **_ff("ff", "x_block.mlp.fc1", "x_block.mlp.fc2"),
        **_ff("ff_context", "context_block.mlp.fc1", "context_block.mlp.fc2"),
    },
    "transformer_blocks",
    "joint_blocks",
)
_WAN: Final = _numbered(
    {f"attn1.to_{name}": f"self_attn.{name}" for name in "qkv"}
    | {f"attn2.to_{name}": f"cross_attn.{name}" for name in "qkv"}
    | {"attn1.to_out.0": "self_attn.o", "attn2.to_out.0": "cross_attn.o"}
    | _ff("ffn", "ffn.0", "ffn.2"),
    "blocks",
    "blocks",
)
_FLUX2: Final = _numbered(
    {
        **_parts("attn.to_{}", "img_attn.qkv"),
        **_parts("attn.add_{}_proj", "txt_attn.qkv"),
        "attn.to_out.0": "img_attn.proj",
        "attn.to_add_out": "txt_attn.proj",
        "ff.linear_in": "img_mlp.0",
        "ff.linear_out": "img_mlp.2",
        "ff_context.linear_in": "txt_mlp.0",
        "ff_context.linear_out": "txt_mlp.2",
    },
    "transformer_blocks",
    "double_blocks",
) | _numbered(
    {"attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2"},
    "single_transformer_blocks",
    "single_blocks",
)
_QWEN: Final = (
    *(f"attn.to_{name}" for name in ("q", "k", "v", "out.0", "add_out")),
    *(f"attn.add_{name}_proj" for name in "qkv"),
    *(f"{stream}_{layer}" for stream in ("img", "txt") for layer in ("mod.1", *_ff("mlp", "", ""))),
)
_Z_IMAGE: Final = (
    *(f"attention.to_{name}" for name in ("q", "k", "v", "out.0")),
    *(f"feed_forward.w{number}" for number in (1, 2, 3)),
    "adaLN_modulation.0",
)
BLOCKS: Final[dict[str, Table]] = {
    "flux": _two_streams("_attn.qkv", "_attn.proj", "_mod.lin", "_mlp.0", "_mlp.2")
    | _one_stream("lin"),
    "flux2": _FLUX2,
    "hunyuan_video": _two_streams("_attn_qkv", "_attn_proj", "_mod.linear", "_mlp.fc1", "_mlp.fc2")
    | _one_stream("linear"),
    "sd3": _JOINT,
    "wan": _WAN,
    "qwen_image": _numbered({n: n for n in _QWEN}, "transformer_blocks", "transformer_blocks"),
    "z_image": {
        f"{blocks}.#.{name}": f"{blocks}.#.{name}"
        for blocks in ("layers", "noise_refiner", "context_refiner")
        for name in _Z_IMAGE
    },
}
"""By family: the layers of its blocks."""

_FINAL: Final = {
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
}
_VECTORS: Final = _embedders(
    "time_text_embed",
    {"timestep": "time_in", "guidance": "guidance_in", "text": "vector_in"},
    ".in_layer",
    ".out_layer",
)
_REFINER: Final = "context_embedder.token_refiner.refiner_blocks"
OUTSIDE: Final[dict[str, Table]] = {
    "flux": {"x_embedder": "img_in", "context_embedder": "txt_in", **_VECTORS},
    "flux2": {
        "x_embedder": "img_in",
        "context_embedder": "txt_in",
        **_embedders(
            "time_guidance_embed",
            {"timestep": "time_in", "guidance": "guidance_in"},
            ".in_layer",
            ".out_layer",
        ),
        **{
            f"{name}.linear": f"{name}.lin"
            for name in (
                *("double_stream_modulation_img", "double_stream_modulation_txt"),
                "single_stream_modulation",
            )
        },
        **_FINAL,
    },
    "sd3": {
        "context_embedder": "context_embedder",
        **_embedders(
            "time_text_embed",
            {"timestep": "t_embedder", "text": "y_embedder"},
            ".mlp.0",
            ".mlp.2",
        ),
        **_FINAL,
    },
    "hunyuan_video": {
        **_VECTORS,
        "context_embedder.proj_in": "txt_in.input_embedder",
        **_embedders(
            "context_embedder.time_text_embed",
            {"timestep": "txt_in.t_embedder", "text": "txt_in.c_embedder"},
            ".in_layer",
            ".out_layer",
        ),
        **_numbered(
            {
                **_parts("attn.to_{}", "self_attn_qkv"),
                "attn.to_out.0": "self_attn_proj",
                **_ff("ff", "mlp.fc1", "mlp.fc2"),
                "norm_out.linear": "adaLN_modulation.1",
            },
            _REFINER,
            "txt_in.individual_token_refiner.blocks",
        ),
        **_FINAL,
    },
    "wan": {
        **_embedders(
            "condition_embedder",
            {"time": "time_embedding", "text": "text_embedding"},
            ".0",
            ".2",
        ),
        "condition_embedder.time_proj": "time_projection.1",
        "proj_out": "head.head",
    },
    "qwen_image": {
        name: name
        for name in (
            *("img_in", "txt_in", "norm_out.linear", "proj_out"),
            *_linear("time_text_embed.timestep_embedder", "", ""),
        )
    },
    "z_image": {
        name: name
        for name in (
            *("all_x_embedder.2-1", "cap_embedder.1", "t_embedder.mlp.0", "t_embedder.mlp.2"),
            *(f"all_final_layer.2-1.{layer}" for layer in ("linear", "adaLN_modulation.1")),
        )
    },
}
"""By family: the layers that are in none of them."""

DIFFUSERS_NAMES: Final = frozenset({"flux", "sd3"})
"""Families of which ComfyUI maps diffusers' names to its own."""

OUTSIDE_OF_KOHYA: Final = frozenset({"flux", "sd3"})
"""Families of which kohya's scripts load LoRAs of layers outside the blocks, too."""

_LISTS: Final = (
    re.escape(_REFINER),
    "(?:single_)?(?:transformer_)?blocks",
    "layers",
    "(?:noise|context)_refiner",
)
_BLOCK: Final = re.compile(rf"({'|'.join(_LISTS)})\.(\d+)\.")


def slot_of(target: Target, family: str, layer: str, shape: tuple[int, int]) -> Slot | None:
    """Return the slot of a layer; None: it is not known where, or the program loads none there.

    Args:
        target: the program.
        family: of the transformer.
        layer: its name in diffusers' transformer.
        shape: outputs and inputs.
    """
    found = _BLOCK.match(layer)
    name = f"{found[1]}.#.{layer[found.end() :]}" if found else layer
    slot = BLOCKS[family].get(name) or _outside(target, family).get(name)
    if slot is None:
        return None
    if target == "comfyui" and family in DIFFUSERS_NAMES:
        return Slot(layer)
    own, _, part = slot.replace("#", found[2] if found else "").partition(":")
    heights = (1,) if not part else (1, 1, 1, 4) if own.endswith("linear1") else (1, 1, 1)
    return Slot(own, int(part or 0), heights, _is_swapped(family, layer, shape))


def _outside(target: Target, family: str) -> Table:
    if target == "comfyui":
        return OUTSIDE[family] | (_FINAL if family == "flux" else {})
    return OUTSIDE[family] if family in OUTSIDE_OF_KOHYA else {}


def _is_swapped(family: str, layer: str, shape: tuple[int, int]) -> bool:
    """Say so of layers that return a scale and a shift: the published models' have the shift first.

    Of sd3's last block the text's norm is one, too.
    """
    if family not in ("flux2", "sd3", "hunyuan_video"):
        return False
    is_last_norm = layer.endswith(".norm1_context.linear") and shape[0] == 2 * shape[1]
    return layer == "norm_out.linear" or is_last_norm
