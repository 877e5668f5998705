"""Names under which programs look for a LoRA, built from how large a model is, by their own rules.

The names stand in these public repositories, in the files named at each function. Nothing of
digen's is used here.
"""

from collections.abc import Collection, Iterable

QKV = ("q", "k", "v")
MLP = ("0", "2")


def flat(layers: Iterable[str]) -> set[str]:
    """kohya-ss/sd-scripts and musubi-tuner, class LoRANetwork: the prefix, and _ for all dots."""
    return {"lora_unet_" + layer.replace(".", "_") for layer in layers}


def blocks(name: str, number: int, layers: Iterable[str]) -> set[str]:
    return {f"{name}.{index}.{layer}" for index in range(number) for layer in layers}


def flux(depth: int, singles: int) -> set[str]:
    """black-forest-labs/flux, src/flux/modules/layers.py: DoubleStreamBlock, SingleStreamBlock."""
    double = {
        f"{stream}_{layer}"
        for stream in ("img", "txt")
        for layer in ("attn.qkv", "attn.proj", "mod.lin", "mlp.0", "mlp.2")
    }
    single = {"linear1", "linear2", "modulation.lin"}
    return blocks("double_blocks", depth, double) | blocks("single_blocks", singles, single)


def kohya_flux(depth: int, singles: int) -> set[str]:
    """sd-scripts, networks/lora_flux.py: the blocks, and what begins with the names of in_dims."""
    ends = {"img_in", "txt_in"} | {
        f"{name}_in.{end}" for name in ("time", "vector", "guidance") for end in IN_OUT
    }
    return flat(flux(depth, singles) | ends)


IN_OUT = ("in_layer", "out_layer")


def comfyui_flux(depth: int, singles: int) -> set[str]:
    """ComfyUI, comfy/utils.py: flux_to_diffusers; comfy/lora.py puts "transformer." before it."""
    double = {f"attn.to_{name}" for name in QKV} | {f"attn.add_{name}_proj" for name in QKV}
    double |= {"attn.to_out.0", "attn.to_add_out", "norm1.linear", "norm1_context.linear"}
    double |= {f"{ff}.net.{end}" for ff in ("ff", "ff_context") for end in ("0.proj", "2")}
    single = {f"attn.to_{name}" for name in QKV} | {"proj_mlp", "proj_out", "norm.linear"}
    names = {"x_embedder", "context_embedder", "norm_out.linear", "proj_out"}
    names |= {
        f"time_text_embed.{name}_embedder.linear_{number}"
        for name in ("timestep", "text", "guidance")
        for number in (1, 2)
    }
    names |= blocks("transformer_blocks", depth, double)
    names |= blocks("single_transformer_blocks", singles, single)
    return {f"transformer.{name}" for name in names}


def flux2(depth: int, singles: int) -> set[str]:
    """black-forest-labs/flux2, src/flux2/model.py: DoubleStreamBlock, SingleStreamBlock."""
    double = {f"{stream}_attn.{layer}" for stream in ("img", "txt") for layer in ("qkv", "proj")}
    double |= {f"{stream}_mlp.{end}" for stream in ("img", "txt") for end in MLP}
    single = {"linear1", "linear2"}
    return blocks("double_blocks", depth, double) | blocks("single_blocks", singles, single)


def kohya_flux2(depth: int, singles: int) -> set[str]:
    """musubi-tuner, networks/lora_flux_2.py: DoubleStreamBlock, SingleStreamBlock."""
    return flat(flux2(depth, singles))


def comfyui_flux2(depth: int, singles: int) -> set[str]:
    """ComfyUI, comfy/lora.py, "generic lora format": its model's own names, the published one's."""
    names = {f"{name}_in.{end}" for name in ("time", "guidance") for end in IN_OUT}
    names |= {"img_in", "txt_in", "final_layer.linear", "final_layer.adaLN_modulation.1"}
    names |= {f"double_stream_modulation_{stream}.lin" for stream in ("img", "txt")}
    names |= {"single_stream_modulation.lin"}
    return {f"diffusion_model.{name}" for name in flux2(depth, singles) | names}


def sd3(depth: int, dual: Collection[int]) -> set[str]:
    """Stability-AI/sd3.5, mmditx.py: JointBlock of two DismantledBlock, the last one's is short."""
    names = set()
    for index in range(depth):
        for own in ("x_block", "context_block"):
            layers = {"attn.qkv", "adaLN_modulation.1"}
            if own == "x_block" or index < depth - 1:
                layers |= {"attn.proj", "mlp.fc1", "mlp.fc2"}
            if own == "x_block" and index in dual:
                layers |= {"attn2.qkv", "attn2.proj"}
            names |= {f"joint_blocks.{index}.{own}.{layer}" for layer in layers}
    return names


def kohya_sd3(depth: int, dual: Collection[int]) -> set[str]:
    """sd-scripts, networks/lora_sd3.py: SingleDiTBlock, and what has the names of emb_dims."""
    ends = {f"{name}_embedder.mlp.{end}" for name in "ty" for end in MLP}
    ends |= {"context_embedder", "final_layer.adaLN_modulation.1", "final_layer.linear"}
    return flat(sd3(depth, dual) | ends)


def comfyui_sd3(depth: int, dual: Collection[int]) -> set[str]:
    """ComfyUI, comfy/utils.py: mmdit_to_diffusers; comfy/lora.py puts "transformer." before it."""
    layers = {f"{attn}.to_{name}" for attn in ("attn", "attn2") for name in (*QKV, "out.0")}
    layers |= {f"attn.add_{name}_proj" for name in QKV} | {"attn.to_add_out"}
    layers |= {"norm1.linear", "norm1_context.linear"}
    layers |= {f"{ff}.net.{end}" for ff in ("ff", "ff_context") for end in ("0.proj", "2")}
    names = {"context_embedder", "norm_out.linear", "proj_out"} | {
        f"time_text_embed.{name}_embedder.linear_{number}"
        for name in ("timestep", "text")
        for number in (1, 2)
    }
    names |= blocks("transformer_blocks", depth, layers)
    return {f"transformer.{name}" for name in names}


def wan(depth: int) -> set[str]:
    """Wan-Video/Wan2.1, wan/modules/model.py: WanAttentionBlock; ComfyUI's comfy/ldm/wan is so."""
    layers = {f"{attn}_attn.{name}" for attn in ("self", "cross") for name in (*QKV, "o")}
    return blocks("blocks", depth, layers | {f"ffn.{end}" for end in MLP})


def kohya_wan(depth: int) -> set[str]:
    """musubi-tuner, networks/lora_wan.py: WanAttentionBlock."""
    return flat(wan(depth))


def comfyui_wan(depth: int) -> set[str]:
    """ComfyUI, comfy/lora.py, "generic lora format": its model's own names."""
    ends = {f"{name}_embedding.{end}" for name in ("time", "text") for end in MLP}
    names = wan(depth) | ends | {"time_projection.1", "head.head"}
    return {f"diffusion_model.{name}" for name in names}


def hunyuan_video(depth: int, singles: int) -> set[str]:
    """Tencent/HunyuanVideo, hyvideo/modules/models.py: MMDoubleStreamBlock, MMSingleStreamBlock."""
    double = {
        f"{stream}_{layer}"
        for stream in ("img", "txt")
        for layer in ("attn_qkv", "attn_proj", "mod.linear", "mlp.fc1", "mlp.fc2")
    }
    single = {"linear1", "linear2", "modulation.linear"}
    return blocks("double_blocks", depth, double) | blocks("single_blocks", singles, single)


def kohya_hunyuan_video(depth: int, singles: int, refiners: int) -> set[str]:
    """musubi-tuner, networks/lora.py: HUNYUAN_TARGET_REPLACE_MODULES, the blocks."""
    return flat(hunyuan_video(depth, singles))


def comfyui_hunyuan_video(depth: int, singles: int, refiners: int) -> set[str]:
    """ComfyUI, comfy/lora.py: of its model's own names, those with _attn.qkv, _attn.proj, _mod.lin,
    modulation.lin, mlp.0 and mlp.2 are also known by the published model's; the others as they are.
    """
    refiner = {"self_attn_qkv", "self_attn_proj", "mlp.fc1", "mlp.fc2", "adaLN_modulation.1"}
    names = hunyuan_video(depth, singles)
    names |= blocks("txt_in.individual_token_refiner.blocks", refiners, refiner)
    in_out = ("time_in", "vector_in", "guidance_in", "txt_in.t_embedder", "txt_in.c_embedder")
    names |= {f"{name}.{end}" for name in in_out for end in IN_OUT}
    names |= {"txt_in.input_embedder", "final_layer.linear", "final_layer.adaLN_modulation.1"}
    return {f"diffusion_model.{name}" for name in names}


def qwen_image(depth: int) -> set[str]:
    """QwenLM/Qwen-Image, whose code is diffusers': transformer_qwenimage.py."""
    layers = {f"attn.to_{name}" for name in (*QKV, "out.0", "add_out")}
    layers |= {f"attn.add_{name}_proj" for name in QKV}
    for stream in ("img", "txt"):
        layers |= {f"{stream}_mod.1", f"{stream}_mlp.net.0.proj", f"{stream}_mlp.net.2"}
    return blocks("transformer_blocks", depth, layers)


def kohya_qwen_image(depth: int) -> set[str]:
    """musubi-tuner, networks/lora_qwen_image.py: QwenImageTransformerBlock."""
    return flat(qwen_image(depth))


def comfyui_qwen_image(depth: int) -> set[str]:
    """ComfyUI, comfy/lora.py, "generic lora format": its model's own names, diffusers'."""
    names = {"img_in", "txt_in", "norm_out.linear", "proj_out"}
    names |= {f"time_text_embed.timestep_embedder.linear_{number}" for number in (1, 2)}
    return {f"diffusion_model.{name}" for name in qwen_image(depth) | names}


def qwen_image21(depth: int) -> set[str]:
    """QwenLM/Qwen-Image-2.1, whose code is diffusers': transformer_qwenimage21.py."""
    layers = {f"attn.to_{name}" for name in (*QKV, "out.0")}
    return blocks(
        "transformer_blocks",
        depth,
        layers | {f"img_mlp.{n}" for n in ("proj", "gate_layer", "out")},
    )


def kohya_qwen_image21(depth: int) -> set[str]:
    """musubi-tuner, networks/lora_qwen_image_21.py: QwenImage21TransformerBlock."""
    return flat(qwen_image21(depth))


def comfyui_qwen_image21(depth: int) -> set[str]:
    """ComfyUI, comfy/lora.py, QwenImage: diffusers' names, also of two that are one matrix."""
    names = {"img_in", "txt_in.in_layer", "txt_in.out_layer", "modulation.1", "proj_out"}
    names |= {f"time_text_embed.timestep_embedder.linear_{number}" for number in (1, 2)}
    names |= qwen_image21(depth) | {"norm_out.linear"}
    return {f"transformer.{name}" for name in names}


def z_image(depth: int, refiners: int) -> set[str]:
    """Tongyi-MAI/Z-Image, whose layers are called as in diffusers' transformer_z_image.py."""
    layers = {f"attention.to_{name}" for name in (*QKV, "out.0")}
    layers |= {f"feed_forward.w{number}" for number in (1, 2, 3)}
    modulated = layers | {"adaLN_modulation.0"}
    names = blocks("layers", depth, modulated) | blocks("noise_refiner", refiners, modulated)
    return names | blocks("context_refiner", refiners, layers)


def kohya_z_image(depth: int, refiners: int) -> set[str]:
    """musubi-tuner, networks/lora_zimage.py: ZImageTransformerBlock, the refiners' too."""
    return flat(z_image(depth, refiners))


def comfyui_z_image(depth: int, refiners: int) -> set[str]:
    """ComfyUI, comfy/utils.py: z_image_to_diffusers; comfy/lora.py: "diffusion_model." before it,
    or "transformer.", which diffusers does not read with an alpha.
    """
    names = {"all_x_embedder.2-1", "cap_embedder.1", "t_embedder.mlp.0", "t_embedder.mlp.2"}
    names |= {f"all_final_layer.2-1.{name}" for name in ("linear", "adaLN_modulation.1")}
    return {f"diffusion_model.{name}" for name in z_image(depth, refiners) | names}


def hunyuan_video15(depth: int) -> set[str]:
    """Tencent-Hunyuan/HunyuanVideo-1.5, hyvideo/models: MMDoubleStreamBlock, q, k, v apart."""
    layers = {
        f"{stream}_{layer}"
        for stream in ("img", "txt")
        for layer in ("attn_proj", "mod.linear", "mlp.fc1", "mlp.fc2")
    }
    layers |= {f"{stream}_attn_{name}" for stream in ("img", "txt") for name in QKV}
    return blocks("double_blocks", depth, layers)


def kohya_hunyuan_video15(depth: int, refiners: int) -> set[str]:
    """musubi-tuner, networks/lora_hv_1_5.py: MMDoubleStreamBlock."""
    return flat(hunyuan_video15(depth))


def comfyui_hunyuan_video15(depth: int, refiners: int) -> set[str]:
    """ComfyUI, comfy/lora.py, "generic lora format": its model's own names, comfy/ldm/hunyuan_video
    with the DoubleStreamBlock of comfy/ldm/flux/layers.py and the MLPProj of comfy/ldm/wan.
    """
    double = {
        f"{stream}_{layer}"
        for stream in ("img", "txt")
        for layer in ("attn.qkv", "attn.proj", "mod.lin", "mlp.0", "mlp.2")
    }
    refiner = {"self_attn.qkv", "self_attn.proj", "mlp.0", "mlp.2", "adaLN_modulation.1"}
    names = blocks("double_blocks", depth, double)
    names |= blocks("txt_in.individual_token_refiner.blocks", refiners, refiner)
    in_out = ("time_in", "txt_in.t_embedder", "txt_in.c_embedder")
    names |= {f"{name}.{end}" for name in in_out for end in IN_OUT}
    names |= {"txt_in.input_embedder", "final_layer.linear", "final_layer.adaLN_modulation.1"}
    names |= {f"byt5_in.fc{number}" for number in (1, 2, 3)} | {
        "vision_in.proj.1",
        "vision_in.proj.3",
    }
    return {f"diffusion_model.{name}" for name in names}


def comfyui_hunyuan_video15_i2v_distilled(depth: int, refiners: int) -> set[str]:
    """The same of a model that is told where steps end."""
    told = {f"diffusion_model.time_r_in.{end}" for end in IN_OUT}
    return comfyui_hunyuan_video15(depth, refiners) | told


def comfyui_ltx2(depth: int) -> set[str]:
    """ComfyUI, comfy/lora.py, "generic lora format": its model's own names, which are the published
    one's, comfy/ldm/lightricks: those of the video, which has no part in the audio.
    """
    names = _of_ltx2(depth, (*QKV, "out.0"), ("adaln_single",))
    names |= {f"caption_projection.linear_{number}" for number in (1, 2)}
    return {f"diffusion_model.{name}" for name in names}


def comfyui_ltx2_23(depth: int) -> set[str]:
    """The same of LTX-2.3, which has gates and modulates the text, and projects it elsewhere."""
    layers, modulated = (*QKV, "out.0", "gate_logits"), ("adaln_single", "prompt_adaln_single")
    return {f"diffusion_model.{name}" for name in _of_ltx2(depth, layers, modulated)}


def _of_ltx2(depth: int, attention: tuple[str, ...], modulated: tuple[str, ...]) -> set[str]:
    layers = {f"attn{number}.to_{name}" for number in (1, 2) for name in attention}
    names = blocks("transformer_blocks", depth, layers | {"ff.net.0.proj", "ff.net.2"})
    for own in modulated:
        names |= {f"{own}.emb.timestep_embedder.linear_{number}" for number in (1, 2)}
        names |= {f"{own}.linear"}
    return names | {"patchify_proj", "proj_out"}
