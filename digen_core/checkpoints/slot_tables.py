"""The tables of slots: what other programs call the layers of each family.

Names are as they stand in these files on GitHub, from which only the names are taken:

| Comfy-Org/ComfyUI        comfy/lora.py, comfy/utils.py, comfy/supported_models.py, comfy/ldm/
| kohya-ss/sd-scripts      networks/lora_flux.py, lora_sd3.py
| kohya-ss/musubi-tuner    networks/lora.py, lora_wan.py, lora_qwen_image.py,
|                          lora_qwen_image_21.py, lora_flux_2.py, lora_zimage.py, lora_hv_1_5.py

kohya's scripts load LoRAs of blocks, and of a few layers outside. ComfyUI knows diffusers' names of
flux, sd3 and qwen_image21, and of the other families those of the published models, which are
diffusers' own for qwen_image; of z_image it knows diffusers' in their place, too. Of
hunyuan_video15 it has one matrix for queries, keys and values, which the published model and
kohya's scripts keep apart.
"""

from collections.abc import Mapping
from typing import Final, Literal

Target = Literal["comfyui", "kohya"]

Table = dict[str, str]
"""Names of layers to their slots. # is the number of a block; what stands behind a colon is a part
of a slot that several layers have together, from the top."""


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
    """Return the layers of blocks of two streams, by what stands behind the name of a stream.

    {} in that of queries, keys and values is for what they are called, where each is a matrix.
    """
    if "{}" in qkv:
        inputs = {f"attn.to_{name}": f"img{qkv.format(name)}" for name in "qkv"}
        inputs |= {f"attn.add_{name}_proj": f"txt{qkv.format(name)}" for name in "qkv"}
    else:
        inputs = _parts("attn.to_{}", f"img{qkv}") | _parts("attn.add_{}_proj", f"txt{qkv}")
    table = {
        **inputs,
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


def _adaln(layer: str, own: str) -> Table:
    """Return the layers that modulate by the noise level in LTX-2."""
    embedder = {"timestep": f"{own}.emb.timestep_embedder"}
    return {
        f"{layer}.linear": f"{own}.linear",
        **_embedders(f"{layer}.emb", embedder, ".linear_1", ".linear_2"),
    }


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
_QWEN_21: Final = (
    *(f"attn.to_{name}" for name in ("q", "k", "v", "out.0")),
    *(f"img_mlp.{name}" for name in ("proj", "gate_layer", "out")),
)
_Z_IMAGE: Final = (
    *(f"attention.to_{name}" for name in ("q", "k", "v", "out.0")),
    *(f"feed_forward.w{number}" for number in (1, 2, 3)),
    "adaLN_modulation.0",
)
_LTX2: Final = (
    *(
        f"attn{number}.to_{name}"
        for number in (1, 2)
        for name in ("q", "k", "v", "out.0", "gate_logits")
    ),
    *_ff("ff", "", ""),
)
_FLUX: Final = _two_streams("_attn.qkv", "_attn.proj", "_mod.lin", "_mlp.0", "_mlp.2")
BLOCKS: Final[dict[str, Table]] = {
    "flux": _FLUX | _one_stream("lin"),
    "flux2": _FLUX2,
    "hunyuan_video": _two_streams("_attn_qkv", "_attn_proj", "_mod.linear", "_mlp.fc1", "_mlp.fc2")
    | _one_stream("linear"),
    "hunyuan_video15": _FLUX,
    "ltx2": _numbered({n: n for n in _LTX2}, "transformer_blocks", "transformer_blocks"),
    "sd3": _JOINT,
    "wan": _WAN,
    "qwen_image": _numbered({n: n for n in _QWEN}, "transformer_blocks", "transformer_blocks"),
    "qwen_image21": _numbered({n: n for n in _QWEN_21}, "transformer_blocks", "transformer_blocks"),
    "z_image": {
        f"{blocks}.#.{name}": f"{blocks}.#.{name}"
        for blocks in ("layers", "noise_refiner", "context_refiner")
        for name in _Z_IMAGE
    },
}
"""By family: the layers of its blocks."""

BLOCKS_OF_KOHYA: Final[dict[str, Table]] = {
    "hunyuan_video15": _two_streams(
        "_attn_{}", "_attn_proj", "_mod.linear", "_mlp.fc1", "_mlp.fc2"
    ),
}
"""By family: those of kohya's scripts, where they differ."""

UNKNOWN_TO_KOHYA: Final = frozenset({"ltx2"})
"""Families of which kohya's scripts have no network, and ComfyUI has."""

FINAL: Final = {
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
}
"""The last layers of models that are like FLUX.1."""

_VECTORS: Final = _embedders(
    "time_text_embed",
    {"timestep": "time_in", "guidance": "guidance_in", "text": "vector_in"},
    ".in_layer",
    ".out_layer",
)
REFINER: Final = "context_embedder.token_refiner.refiner_blocks"
"""The list of blocks of hunyuan_video's text, whose layers no program has among the others."""


def _text_refiner(qkv: str, out: str, ff_in: str, ff_out: str) -> Table:
    """Return the layers that the text of hunyuan_video goes through before the blocks."""
    return {
        "context_embedder.proj_in": "txt_in.input_embedder",
        **_embedders(
            "context_embedder.time_text_embed",
            {"timestep": "txt_in.t_embedder", "text": "txt_in.c_embedder"},
            ".in_layer",
            ".out_layer",
        ),
        **_numbered(
            {
                **_parts("attn.to_{}", qkv),
                "attn.to_out.0": out,
                **_ff("ff", ff_in, ff_out),
                "norm_out.linear": "adaLN_modulation.1",
            },
            REFINER,
            "txt_in.individual_token_refiner.blocks",
        ),
    }


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
        **FINAL,
    },
    "sd3": {
        "context_embedder": "context_embedder",
        **_embedders(
            "time_text_embed",
            {"timestep": "t_embedder", "text": "y_embedder"},
            ".mlp.0",
            ".mlp.2",
        ),
        **FINAL,
    },
    "hunyuan_video": {
        **_VECTORS,
        **_text_refiner("self_attn_qkv", "self_attn_proj", "mlp.fc1", "mlp.fc2"),
        **FINAL,
    },
    "hunyuan_video15": {
        **_embedders("time_embed", {"timestep": "time_in"}, ".in_layer", ".out_layer"),
        **_linear("time_embed.timestep_embedder_r", "time_r_in.in_layer", "time_r_in.out_layer"),
        **_text_refiner("self_attn.qkv", "self_attn.proj", "mlp.0", "mlp.2"),
        **{f"context_embedder_2.linear_{number}": f"byt5_in.fc{number}" for number in (1, 2, 3)},
        **_linear("image_embedder", "vision_in.proj.1", "vision_in.proj.3"),
        **FINAL,
    },
    "ltx2": {
        "proj_in": "patchify_proj",
        "proj_out": "proj_out",
        **_adaln("time_embed", "adaln_single"),
        **_adaln("prompt_adaln", "prompt_adaln_single"),
        **_linear(
            "caption_projection", "caption_projection.linear_1", "caption_projection.linear_2"
        ),
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
    "qwen_image21": {
        name: name
        for name in (
            *("img_in", "txt_in.in_layer", "txt_in.out_layer", "modulation.1"),
            *("norm_out.linear", "proj_out"),
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

DIFFUSERS_NAMES: Final = frozenset({"flux", "sd3", "qwen_image21"})
"""Families of which ComfyUI maps diffusers' names to its own."""

OUTSIDE_OF_KOHYA: Final = frozenset({"flux", "sd3"})
"""Families of which kohya's scripts load LoRAs of layers outside the blocks, too."""
