"""Rewards of a user's own, for tests: named `smooth_rewards:<function>` in a config."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def brightness(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Mean of the red channel minus half the blue one: smooth, so rounding stays rounding.

    In float64, as a GPU's sum of float32 depends on how many samples there are.
    """
    images = images.double()
    return (images[:, 0] - images[:, 2] / 2).mean(dim=(1, 2))


def targeted(
    images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[dict[str, Any]]
) -> torch.Tensor:
    """Brightness towards the target that each prompt's row names."""
    targets = [row["target"]["red"] for row in metadata]
    values = brightness(images, prompts)
    return -(values - values.new_tensor(targets)).square()


def video_brightness(videos: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Mean brightness of the frames, the later ones counting more."""
    frames = torch.stack([brightness(frame, prompts) for frame in videos.unbind(1)], dim=1)
    return frames @ torch.linspace(0.1, 0.3, frames.shape[1]).to(frames)


def contrast(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Mean square of the green channel around its middle, on another scale than brightness."""
    return 10 * (images[:, 1] - 0.5).square().mean(dim=(1, 2))


def partly_equal(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Equal rewards for prompts with an 'a' as second word's start: groups without signal."""
    values = brightness(images, prompts)
    flat = torch.tensor(["circle" in prompt for prompt in prompts], device=values.device)
    return torch.where(flat, torch.full_like(values, 0.3), values)


def fails_later(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Work while evaluating (many prompts at once), then raise in the first iteration."""
    if len(set(prompts)) == 1:
        raise ValueError("no such judge")
    return brightness(images, prompts)


def not_a_number(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Return NaN for one image of a rollout fragment."""
    values = brightness(images, prompts)
    if len(set(prompts)) == 1:
        values[1] = float("nan")
    return values


def sometimes_none(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Brightness; NaN or Inf for some of the samples, whoever scores them with which others."""
    values = brightness(images, prompts)
    marks = (1e4 * values).floor() % 16
    values[marks == 3] = float("nan")
    values[marks == 11] = float("-inf")
    return values


def sometimes_huge(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Brightness, which counts 1e3 with a weight of 1e290; with triangles an update overflows."""
    values = brightness(images, prompts).double()
    large = torch.tensor(["triangle" in prompt for prompt in prompts], device=values.device)
    return torch.where(large, 1e13 * values, 1e-287 * values)


def kills_its_worker(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """End the worker process as an out-of-memory killer does, in the first iteration."""
    if len(set(prompts)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return brightness(images, prompts)


def slow(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """As brightness, after half a second."""
    time.sleep(0.5)
    return brightness(images, prompts)


HANG_VARIABLE = "DIGEN_TEST_HANG"
"""Names the file that says that ``hangs_once`` has hung."""


def hangs_once(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """As brightness; in the first iteration, one call of all never ends."""
    marker = Path(os.environ[HANG_VARIABLE])
    if len(set(prompts)) == 1 and not marker.exists():
        marker.write_text(str(os.getpid()))
        time.sleep(3600)
    return brightness(images, prompts)


def broken(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Fails always."""
    raise OSError("the lamp is broken")


class EndsItsWorkerOnce:
    """Brightness; it ends its process once, and leaves a file that says so."""

    def __init__(self, device: torch.device, marker: str, when: str = "scored") -> None:
        """Die at once if that is ``when`` it is ``loaded``; it may be ``tried`` or ``scored``."""
        self.marker, self.when = Path(marker), when
        self.die_when("loaded")

    def __call__(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Score, or die; it is tried with two images before the start."""
        is_tried = len(set(prompts)) > 1 or len(images) == 2
        self.die_when("tried" if is_tried else "scored")
        return brightness(images, prompts)

    def die_when(self, now: str) -> None:
        if self.when == now and not self.marker.exists():
            self.marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


class NeverLoads:
    """Ends each process that makes it, as what needs more memory than there is."""

    def __init__(self, device: torch.device) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, images: torch.Tensor, prompts: list[str]) -> list[float]:
        raise AssertionError("nothing is left that would call it")


class OneValue:
    """Returns one number for all samples."""

    def __init__(self, device: torch.device) -> None:
        pass

    def __call__(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Score them as one."""
        return brightness(images, prompts)[:1]


def like_all_sources(
    images: torch.Tensor,
    prompts: Sequence[str],
    sources: torch.Tensor,
    more_sources: Sequence[torch.Tensor] | None,
) -> torch.Tensor:
    """Minus the squared distance to the mean of all that the image is an edit of."""
    others = more_sources or [image[:0] for image in sources[:, None]]
    means = [own.sum(0) + other.sum(0) for own, other in zip(sources[:, None], others, strict=True)]
    numbers = [1 + len(other) for other in others]
    target = torch.stack([mean / n for mean, n in zip(means, numbers, strict=True)])
    return -(images - target.to(images) / 2).square().mean(dim=(1, 2, 3))


def like_source(
    images: torch.Tensor, prompts: Sequence[str], sources: torch.Tensor
) -> torch.Tensor:
    """Minus the squared distance to what the image is an edit of, half as bright."""
    return -(images - sources.to(images) / 2).square().mean(dim=(1, 2, 3))


def versus(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """How sure it is, on average, that an image is brighter than each other one of its group."""
    if len(set(prompts)) != 1 or len(images) not in (2, 4):
        raise ValueError(f"{len(images)} images of {set(prompts)} are no group of the tests")
    values = brightness(images, prompts)
    sure = torch.sigmoid(40 * (values[:, None] - values[None, :]))
    return (sure.sum(dim=1) - 0.5) / (len(values) - 1)


def versus_slowly(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """As versus, after a moment in which others may be lost."""
    time.sleep(0.2)
    return versus(images, prompts)


def like_others(
    images: torch.Tensor, prompts: Sequence[str], more_sources: Sequence[torch.Tensor] | None
) -> list[float]:
    """Score by how many images a prompt has behind the first."""
    return [float(len(own)) for own in more_sources] if more_sources else [0.0] * len(images)


def calm(latents: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """How small latents [B, C, h, w] are, the later channels counting more; smooth as brightness.

    Of videos [B, C, f, h, w] likewise.
    """
    assert latents.dtype == torch.float32
    assert len(latents) == len(prompts)
    squares = latents.double().square().flatten(2).mean(dim=2)
    return -squares @ torch.linspace(0.5, 1.5, squares.shape[1]).to(squares)


def calm_among(latents: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """How sure it is, on average, that a sample is calmer than each other one of its group."""
    if len(set(prompts)) != 1 or len(latents) not in (2, 4):
        raise ValueError(f"{len(latents)} latents of {set(prompts)} are no group of the tests")
    values = calm(latents, prompts)
    sure = torch.sigmoid(40 * (values[:, None] - values[None, :]))
    return (sure.sum(dim=1) - 0.5) / (len(values) - 1)


def like_latents_of_source(
    latents: torch.Tensor, prompts: Sequence[str], sources: torch.Tensor
) -> torch.Tensor:
    """How calm latents are, and how bright what they are edits of is: images that stay images."""
    assert (len(sources), sources.ndim) == (len(latents), 4)
    times = sources.shape[2] // latents.shape[2]
    assert sources.shape[1:] == (3, times * latents.shape[2], times * latents.shape[3])
    return calm(latents, prompts) * (1 + brightness(sources, prompts))


class CountsDecoded:
    """As calm; a line of a file says of each call of a VAE of its process how many it decoded."""

    def __init__(self, device: torch.device, file: str) -> None:
        from diffusers import AutoencoderKL

        decode = AutoencoderKL.decode

        def counted(
            vae: AutoencoderKL, latents: torch.Tensor, *arguments: Any, **settings: Any
        ) -> Any:
            with open(file, "a") as lines:
                lines.write(f"{len(latents)}\n")
            return decode(vae, latents, *arguments, **settings)

        AutoencoderKL.decode = counted

    def __call__(self, latents: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        return calm(latents, prompts)
