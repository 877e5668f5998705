"""Pretraining of the tiny FLUX on the world ``shapes``: the base model that RL starts from.

First the VAE learns to reconstruct, then the transformer and both text encoders learn the
velocity of a rectified flow between its latents and noise, on training prompts only:
    x_sigma = (1 - sigma) * x_0 + sigma * noise,  target v = noise - x_0,  sigma in [0, 1].

The lengths are counted in steps, so a seed gives the same weights on the same machine.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import FluxPipeline
from numpy.typing import NDArray
from torch import Tensor, nn

from digen_core.models.tiny.flux import PROMPT_TOKENS, build_tiny_flux
from digen_core.transport.files import new_folder
from digen_core.worlds.shapes import parse_prompt, render, train_prompts

OnProgress = Callable[[str, int, float], None]
"""Called with the phase ("vae" or "flow"), the number of steps done and the recent mean loss."""

_REPORT_EVERY: Final = 100
_KL_WEIGHT: Final = 6.4e-3
_KIND_SHARES: Final = {"single": 0.15, "count": 0.3, "relation": 0.55}
"""How often each kind of prompt is trained on: more often than its share of prompts for the
kinds with few prompts, so that they are not learned much later than relations."""


@dataclass(frozen=True)
class PretrainConfig:
    """Lengths and sizes; the defaults make the committed base model, in under 10 minutes."""

    num_images: int = 24_000
    vae_steps: int = 1_200
    vae_batch_size: int = 32
    vae_learning_rate: float = 3e-3
    flow_steps: int = 1_000
    """Deliberately few: a base model that half knows the world leaves room for RL."""
    flow_batch_size: int = 64
    flow_learning_rate: float = 2e-3
    warmup_steps: int = 100
    ema_decay: float = 0.995
    shift: float = 1.0


@dataclass(frozen=True)
class Data:
    """Images with their prompts."""

    prompts: list[str]
    prompt_index: Tensor
    """[N] index into ``prompts`` of every image."""
    images: Tensor
    """[N, 3, 32, 32] in [-1, 1]."""


def pretrain_shapes(
    out_dir: Path,
    *,
    seed: int = 0,
    config: PretrainConfig | None = None,
    num_threads: int = 2,
    on_progress: OnProgress | None = None,
) -> FluxPipeline:
    """Train a tiny FLUX from random weights and save it to ``out_dir`` in half precision.

    Sets the process's number of torch threads and its global seed. Returns the float32 pipeline.
    """
    config = config or PretrainConfig()
    on_progress = on_progress or (lambda phase, step, loss: None)
    torch.set_num_threads(num_threads)
    pipe = build_tiny_flux(shift=config.shift, seed=seed)
    torch.manual_seed(seed)
    data = _render_data(config.num_images, np.random.default_rng(seed))
    train_vae(pipe, data.images, config, on_progress)
    latents = encode_latents(pipe, data.images)
    for _ in train_flow(pipe, data, latents, config, on_progress):
        pass
    save_half(pipe, out_dir)
    return pipe


def save_half(pipe: Any, out_dir: Path) -> None:
    """Save a float16 copy of the pipeline in the diffusers layout, whole or not at all.

    Raises:
        UserError: the disk takes no more.
    """
    modules = {name: copy.deepcopy(module).half() for name, module in _modules(pipe).items()}
    rest = {k: v for k, v in pipe.components.items() if k not in modules}
    for tokenizer in (pipe.tokenizer, pipe.tokenizer_2):
        tokenizer.backend_tokenizer.no_padding()  # the last call's padding would be saved with it
    with new_folder(out_dir) as unfinished:
        type(pipe)(**rest, **modules).save_pretrained(unfinished, safe_serialization=True)


def train_vae(
    pipe: FluxPipeline, images: Tensor, config: PretrainConfig, on_progress: OnProgress
) -> None:
    """Train the VAE to reconstruct images [N, 3, 32, 32], with a small KL to a unit Gaussian."""
    vae = pipe.vae
    optimizer, schedule = _optimizer(
        vae.parameters(), config.vae_learning_rate, config.warmup_steps, config.vae_steps
    )
    losses: list[float] = []
    for step in range(1, config.vae_steps + 1):
        batch = images[torch.randint(len(images), (config.vae_batch_size,))]
        posterior = vae.encode(batch).latent_dist
        error = vae.decode(posterior.sample()).sample - batch
        divergence = posterior.kl().mean() / batch[0].numel()
        loss = error.abs().mean() + error.square().mean() + _KL_WEIGHT * divergence
        losses.append(_step(loss, vae.parameters(), optimizer, schedule))
        if step % _REPORT_EVERY == 0 or step == config.vae_steps:
            on_progress("vae", step, float(np.mean(losses)))
            losses.clear()
    vae.requires_grad_(requires_grad=False)


@torch.no_grad()
def encode_latents(pipe: FluxPipeline, images: Tensor) -> Tensor:
    """Return packed latents [N, 16, 16] and set the VAE's scale and shift to normalise them."""
    latents = _encoded(pipe, images)
    shift, scale = latents.mean().item(), 1 / latents.std().item()
    pipe.vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    return _pack((latents - shift) * scale)


@torch.no_grad()
def scaled_latents(pipe: FluxPipeline, images: Tensor) -> Tensor:
    """Return packed latents [N, 16, 16] at the scale and around the shift that the VAE has."""
    settings = pipe.vae.config
    return _pack((_encoded(pipe, images) - settings.shift_factor) * settings.scaling_factor)


def _encoded(pipe: FluxPipeline, images: Tensor) -> Tensor:
    chunks = [pipe.vae.encode(chunk).latent_dist.mode() for chunk in torch.split(images, 256)]
    return torch.cat(chunks)


def train_flow(
    pipe: FluxPipeline,
    data: Data,
    latents: Tensor,
    config: PretrainConfig,
    on_progress: OnProgress,
    sources: Tensor | None = None,
) -> Iterator[int]:
    """Train transformer and text encoders; yield after every report with averaged weights set.

    The weights that stay in ``pipe`` are their exponential moving average: while an iteration is
    suspended at a yield the pipeline is ready to sample.

    Args:
        pipe: to train.
        data: prompts, and which one each image is of.
        latents: of the images, [N, 16, 16].
        config: lengths and sizes.
        on_progress: is called now and then.
        sources: latents of the images that are edited, [N, 16, 16], if they are.
    """
    trained = [pipe.transformer, pipe.text_encoder, pipe.text_encoder_2]
    parameters = list(nn.ModuleList(trained).parameters())
    average = [p.detach().clone() for p in parameters]
    optimizer, schedule = _optimizer(parameters, config.flow_learning_rate, config.warmup_steps)
    inputs = _tokenize(pipe, data.prompts)
    losses: list[float] = []
    for step in range(1, config.flow_steps + 1):
        index = torch.randint(len(latents), (config.flow_batch_size,))
        clip_ids, t5_ids = (ids[data.prompt_index[index]] for ids in inputs)
        source = None if sources is None else sources[index]
        loss = _flow_loss(pipe, latents[index], clip_ids, t5_ids, source)
        losses.append(_step(loss, parameters, optimizer, schedule))
        decay = min(config.ema_decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - decay)
        if step % _REPORT_EVERY == 0 or step == config.flow_steps:
            on_progress("flow", step, float(np.mean(losses)))
            losses.clear()
            _swap(parameters, average)
            yield step
            _swap(parameters, average)
    _swap(parameters, average)


def _swap(parameters: list[nn.Parameter], others: list[Tensor]) -> None:
    for parameter, other in zip(parameters, others, strict=True):
        parameter.data, other.data = other.data, parameter.data


def _render_data(num_images: int, rng: np.random.Generator) -> Data:
    """Render images of training prompts, each kind of prompt in its share."""
    prompts = list(train_prompts())
    kinds = [parse_prompt(prompt).kind for prompt in prompts]
    weights = np.array([_KIND_SHARES[kind] / kinds.count(kind) for kind in kinds])
    index = rng.choice(len(prompts), num_images, p=weights / weights.sum())
    images = np.stack([render(prompts[i], rng) for i in index])
    return Data(prompts, torch.from_numpy(index), as_model_sees(images))


def as_model_sees(images: NDArray[np.uint8]) -> Tensor:
    """Return images [N, 32, 32, 3] as float32 [N, 3, 32, 32] in [-1, 1]."""
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous()


def _flow_loss(
    pipe: FluxPipeline, clean: Tensor, clip_ids: Tensor, t5_ids: Tensor, source: Tensor | None
) -> Tensor:
    """Return the mean squared error of the velocity at random sigmas.

    Args:
        pipe: the pipeline to train.
        clean: packed latents [B, 16, 16].
        clip_ids: [B, PROMPT_TOKENS] for the pooled embedding.
        t5_ids: [B, PROMPT_TOKENS] for the embedding of each token.
        source: packed latents [B, 16, 16] of the images that are edited, if they are.
    """
    pooled = pipe.text_encoder(clip_ids).pooler_output
    embeds = pipe.text_encoder_2(t5_ids)[0]
    # Sigmas cluster in the middle, where the layout is decided (as SD3 trains).
    sigma = torch.sigmoid(torch.randn(len(clean)))
    noise = torch.randn_like(clean)
    s = sigma[:, None, None]
    shown = (1 - s) * clean + s * noise
    places = FluxPipeline._prepare_latent_image_ids(1, 4, 4, clean.device, clean.dtype)
    if source is not None:  # as FLUX.1 Kontext is shown it
        shown = torch.cat([shown, source], dim=1)
        places = torch.cat([places, places + torch.tensor([1, 0, 0])])
    velocity = pipe.transformer(
        hidden_states=shown,
        timestep=sigma,
        pooled_projections=pooled,
        encoder_hidden_states=embeds,
        txt_ids=torch.zeros(embeds.shape[1], 3),
        img_ids=places,
        return_dict=False,
    )[0][:, : clean.shape[1]]
    return nn.functional.mse_loss(velocity, noise - clean)


def _tokenize(pipe: FluxPipeline, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Return padded token ids [P, PROMPT_TOKENS] for CLIP and T5, as the pipeline does."""
    tokenizers = (pipe.tokenizer, pipe.tokenizer_2)
    clip, t5 = (
        tokenizer(prompts, padding="max_length", max_length=PROMPT_TOKENS, return_tensors="pt")
        for tokenizer in tokenizers
    )
    return clip.input_ids, t5.input_ids


def _pack(latents: Tensor) -> Tensor:
    """Return latents [N, C, H, W] as image tokens [N, H/2 * W/2, 4 C]."""
    count, channels, height, width = latents.shape
    packed: Tensor = FluxPipeline._pack_latents(latents, count, channels, height, width)
    return packed


def _modules(pipe: FluxPipeline) -> dict[str, Any]:
    return {k: v for k, v in pipe.components.items() if isinstance(v, nn.Module)}


def _optimizer(
    parameters: Any, learning_rate: float, warmup: int, steps: int | None = None
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return AdamW with warm-up, then a constant rate, or a linear decay to 0 after ``steps``."""
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.01)

    def factor(step: int) -> float:
        decay = 1.0 if steps is None else 1 - step / (steps + 1)
        return min(1.0, (step + 1) / warmup) * decay

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def _step(
    loss: Tensor,
    parameters: Any,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    """Take one step with clipped gradients; return the loss as a number."""
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    schedule.step()
    return loss.item()
