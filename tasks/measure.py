"""The task that measures the costs of work on its device, before the first iteration."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from io import BytesIO
from math import inf
from operator import itemgetter
from time import monotonic, time
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.data.images import SourceImage
from digen_core.data.prompts import Prompt
from digen_core.gang.members import ALONE, Gang
from digen_core.models.out_of_memory import is_out_of_memory
from digen_core.models.policy import Condition, Policy
from digen_core.models.trainable import trainable_parameters
from digen_core.planning.profile import LineFit, Measured
from digen_core.rollout.conditions import encoded
from digen_core.rollout.references import reference_share
from digen_core.training.coded import agreement_of, as_if_sampled_now
from digen_core.training.gradient import Agreement
from digen_core.training.gradient_sum import pack_gradient
from digen_core.training.pairs import CleanPairs, Pairs
from digen_core.transport.arrays import Arrays, to_tensors
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import MeasuredCosts
from tasks.setup import load_engine, require_rollouts
from tasks.worker.engine import Engine, engine_of, working
from tasks.worker.fitting import Activity, needing_memory

ROLES = ("rollout", "trainer")

_ANY_LEVEL = 0.5  # of noise, where none takes more than others

Work = Literal["step", "pack"]
"""A denoising step of some samples, or forward and backward of some pairs."""


@body("measure", MeasuredCosts)
def measure(
    run_id: str, label: str, conditions: dict[str, Arrays], key: str, roles: list[str]
) -> tuple[None, MeasuredCosts]:
    """Measure the work of some roles, with the model of the run."""
    with working(run_id):
        condition = to_tensors(conditions[key], torch.device("cpu"))
        found = measured_together(run_id, condition, roles)
    return None, MeasuredCosts(found)


@together
def measured_together(run_id: str, condition: Condition, roles: list[str]) -> Measured:
    """Return what work costs that all members of a gang do, of which each takes its share.

    Raises:
        UserError: it does not fit, and the gang computes together: else it is left out.
    """
    engine = engine_of(run_id)
    device = engine.policy.device
    return _measured(engine, {name: value.to(device) for name, value in condition.items()}, roles)


def measure_alone(config: RunConfig, prompt: Prompt) -> Measured:
    """Load the model on a device of no run yet, and measure the work of both roles.

    Raises:
        UserError: the model cannot be loaded, or this machine has not its rollouts' precision.
    """
    require_rollouts(config)
    engine = load_engine("measure", config, "measure", ROLES)
    condition = encoded(engine.policy, [prompt])
    host = {name: value.cpu() for name, value in condition.items()}
    return measured_together("measure", host, [*ROLES])


def pack_seconds(
    config: RunConfig, prompt: Prompt, sizes: Sequence[int], rounds: int
) -> dict[int, list[float]]:
    """Load the model in this process and time packs of some sizes, interleaved.

    Args:
        config: of the run.
        prompt: of all pairs.
        sizes: pairs in a pack.
        rounds: in which each size is timed once, after one that warms up.

    Returns:
        Seconds of forward and backward of each size; a size that does not fit into memory is left
        out.

    Raises:
        UserError: the model cannot be loaded.
    """
    engine = load_engine("measure", config, "measure", ROLES)
    condition = encoded(engine.policy, [prompt])
    works: list[tuple[Work, int]] = [("pack", size) for size in sizes]
    found = work_seconds(engine.policy, config, condition, works, rounds)
    return {size: seconds for (_, size), seconds in found.items()}


def work_seconds(
    policy: Policy,
    config: RunConfig,
    condition: Condition,
    works: Sequence[tuple[Work, int]],
    rounds: int,
    gang: Gang = ALONE,
    until: float = inf,
) -> dict[tuple[Work, int], list[float]]:
    """Time work of some sizes in this process, interleaved, the smaller sizes first.

    Args:
        policy: with what is trained attached.
        config: of the run.
        condition: of all samples, one row.
        works: each with its number of samples or pairs.
        rounds: in which each is timed once, after one that warms up.
        gang: whose member this process is; all of them time the same.
        until: on the monotonic clock, from when no size is begun that has not run yet, and no round
            but the first; what ran once is timed once more.

    Returns:
        Seconds of each until the device has done it, none of what there was no time for; what does
        not fit into memory is left out. A step is as many times its one velocity as it asks for.

    Raises:
        UserError: something does not fit, and the gang computes together.
    """
    work = _Work(policy, config, condition, gang)
    timed: dict[Work, tuple[Callable[[int], object], float]] = {
        "step": (work.step, work.velocities_per_step),
        "pack": (work.pack, 1.0),
    }
    ordered = sorted(works, key=itemgetter(1))
    found: dict[tuple[Work, int], list[float]] = {each: [] for each in ordered}
    has_run = set[tuple[Work, int]]()
    for number in range(rounds + 1):
        if number > 1 and monotonic() > until:
            break
        for kind, size in list(found):
            if (not number and monotonic() > until) or (number and (kind, size) not in has_run):
                continue
            method, times = timed[kind]
            try:
                seconds = times * _seconds(partial(method, size))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                del found[kind, size]
                continue
            has_run.add((kind, size))
            if number:
                found[kind, size].append(seconds)
    return found


def compared_pack(
    policy: Policy, config: RunConfig, condition: Condition, size: int, gang: Gang = ALONE
) -> Agreement:
    """Return how alike the gradients of a pack are, with coded cuts and without (collective).

    Args:
        policy: with what is trained attached.
        config: of the run.
        condition: of all samples, one row.
        size: pairs in the pack.
        gang: whose member this process is; the result is of its part of the gradients.
    """
    return _Work(policy, config, condition, gang).compared(size)


def _measured(engine: Engine, condition: Condition, roles: list[str] | tuple[str, ...]) -> Measured:
    config, gang = engine.config, engine.gang
    work = _Work(engine.policy, config, condition, gang, engine.device_name)
    generates, trains = "rollout" in roles, "trainer" in roles
    return Measured(
        step=_step(work, config, gang) if generates else None,
        decode=_decode_line(work, config) if generates and gang.is_leader else None,
        pack=_line(work.pack, config.train.pack_size) if trains else None,
    )


def _step(work: "_Work", config: RunConfig, gang: Gang) -> Linear:
    """Time a step, or its share of what takes the place of all: the leader encodes samples."""
    per_step = work.velocities_per_step
    step = _line(work.step, config.batch_size).times(per_step) if per_step else Linear()
    if not config.encodings_per_step or not gang.is_leader:
        return step
    own = _line(work.encode, config.fragment_size).times(config.encodings_per_step)
    added = {"fixed": step.fixed + own.fixed, "per_item": step.per_item + own.per_item}
    return step.model_copy(update=added)


def _decode_line(work: "_Work", config: RunConfig) -> Linear:
    """Return what decoding costs; it is nothing where training samples are not decoded."""
    return _line(work.decode, config.fragment_size) if config.is_decoded else Linear()


def _line(work: Callable[[int], object], largest: int) -> Linear:
    """Time one item and as many as there are at most: each once to warm up, then once more."""
    fit = LineFit()
    for size in sorted({1, largest}):
        try:
            work(size)
            seconds = _seconds(partial(work, size))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            break  # the run will find out what fits
        fit.add(size, seconds)
    return fit.line(Linear())


def _seconds(work: Callable[[], object]) -> float:
    started = time()
    work()
    return time() - started


class _Work:
    """Work on noise in place of latents; each method waits until the device has done it.

    Not on zeros: they can take a GPU less power, and so less time, than numbers do.
    """

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        condition: Condition,
        gang: Gang = ALONE,
        device_name: str = "the gang",
    ) -> None:
        self._policy = policy
        self._device_name = device_name
        self._gang = gang
        self._config = config
        self._condition = condition
        self._trained = trainable_parameters(policy)
        self._level = self._dearest(_ANY_LEVEL)

    @property
    def velocities_per_step(self) -> float:
        """Velocities of a denoising step, in those of a sample: others may have other guidance."""
        config, policy = self._config, self._policy
        asked = config.velocities_per_step - config.own_velocities
        share = reference_share(config)
        passes = share * policy.as_reference().num_passes
        passes += (1 - share) * policy.in_training().num_passes
        return config.own_velocities + asked * passes / policy.num_passes

    def _waited_for(self, activity: Activity, number: int) -> AbstractContextManager[None]:
        """Run the body, a pass of so many samples that members of a gang may need each other for.

        Raises:
            UserError: it does not fit, and others wait for what this member did not do.
        """
        if not self._gang.computes_together:
            return nullcontext()
        return needing_memory(self._device_name, activity, self._config.model.size, number)

    @torch.no_grad()
    def step(self, num_samples: int) -> None:
        """One velocity of a fragment."""
        own, precision = self._gang.computed(num_samples), self._config.rollout.precision
        with self._waited_for("denoise", num_samples), self._policy.sampling(precision):
            x = self._latents(num_samples)[own]
            sigma = torch.full((len(x),), self._level, device=self._policy.device)
            condition = self._policy.without_padding(self._rows(len(x)))
            float(self._policy.velocity(x, sigma, condition).sum())

    def encode(self, num_samples: int) -> None:
        """Encode the images that are a fragment's samples."""
        height, width, _ = self._config.model.size
        file = BytesIO()
        Image.new("RGB", (width, height), "grey").save(file, "PNG")
        image = SourceImage.of(file.getvalue())
        float(self._policy.encode_samples([image] * num_samples).sum())

    @torch.no_grad()
    def decode(self, num_samples: int) -> None:
        """Decode a fragment. Rewards, which may be anybody's service, are left alone."""
        zeros = torch.zeros_like(self._latents(num_samples))  # of which every VAE makes pixels
        float(self._policy.decode(zeros).sum())

    def pack(self, num_pairs: int) -> None:
        """Forward and backward of a pack."""
        with self._waited_for("train", num_pairs):
            pairs = self._pairs(num_pairs)
            pack_gradient(self._policy, pairs, self._config, self._gang, self._trained)

    def compared(self, num_pairs: int) -> Agreement:
        """Compare the gradient of a pack with coded cuts to the one without."""
        pairs = self._pairs(num_pairs)
        if isinstance(pairs, Pairs):
            pairs = as_if_sampled_now(self._policy, pairs, self._config, self._gang)
        own = pack_gradient(self._policy, pairs, self._config, self._gang)
        return agreement_of(self._policy, pairs, own, self._config, self._gang)

    def _pairs(self, num_pairs: int) -> Pairs | CleanPairs:
        """Return pairs of the middle step, or of one with guidance, as they are trained."""
        device, config = self._policy.device, self._config
        x, condition = self._latents(num_pairs), self._rows(num_pairs)
        ones, num_steps = torch.ones(num_pairs, device=device), config.rollout.num_steps
        sigmas = self._policy.sigmas(num_steps).to(device)
        levels = sigmas.tolist()
        step = levels.index(self._dearest(levels[num_steps // 2 - 1]))
        sigma = sigmas[step].expand(num_pairs)
        if config.trains_clean:
            return self._with_others(CleanPairs(x, x, ones, sigma, condition))
        pairs = Pairs(
            x=x,
            x_next=x,
            behaviour_logprob=ones,
            advantage=ones,
            sigma=sigma,
            sigma_next=sigmas[step + 1].expand(num_pairs),
            sigma_max=float(sigmas[1]),
            condition=condition,
            is_own=torch.zeros(num_pairs, dtype=torch.bool, device=device),
            is_stale=torch.zeros(num_pairs, dtype=torch.bool, device=device),
            noise=x if config.algorithm.needs_noise else None,
        )
        return self._with_others(pairs)

    @torch.no_grad()
    def _with_others(self, pairs: Pairs | CleanPairs) -> Pairs | CleanPairs:
        """Add velocities of what generated when the iteration began, and of the reference policy.

        The first are computed here if they are asked for, the others come with trajectories.
        """
        if self._config.generates_reference:
            pairs = replace(pairs, reference_velocity=torch.randn_like(pairs.x))
        if not self._config.other_velocities:
            return pairs
        trained_as = self._policy.in_training()
        start = trained_as.velocity(pairs.x, pairs.sigma, pairs.condition)
        return replace(pairs, start_velocity=start)

    def _dearest(self, level: float) -> float:
        """Return a noise level at which most is computed: this one, or of a step with guidance."""
        model = self._config.model
        if not model.guidance_schedule:
            return level
        steps: list[float] = self._policy.sigmas(self._config.rollout.num_steps)[:-1].tolist()
        scales = model.guidance_scales
        return max(level, *steps, key=lambda own: scales[model.num_levels_above(own)])

    def _latents(self, size: int) -> Tensor:
        policy = self._policy
        return torch.randn(
            size,
            *policy.latent_shape,
            generator=torch.Generator(policy.device).manual_seed(0),
            device=policy.device,
            dtype=policy.latent_dtype,
        )

    def _rows(self, size: int) -> Condition:
        return {
            name: value.expand(size, *value.shape[1:]) for name, value in self._condition.items()
        }
