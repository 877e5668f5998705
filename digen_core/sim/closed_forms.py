"""Seconds per iteration of each layout by a formula: many small groups, no jitter.

Symbols: W_g, W_t(b) work of an iteration in seconds of the reference device; R, M speeds of all
rollout devices and trainers, P = R + M; n groups; p = W_g / (R n), q = W_t / (M n); rho, rho_1
reward of the batch and of one group; s = helper_in + helper_out; opt the optimizer step, and before
it the sums of all trainers but one, of each update, one after the other wherever they are.

A batch of only a few waves of fragments has thresholds that the formulas do not show: a formula
ranks splits, the simulator judges them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from digen_core.control.costs import DeviceCosts
from digen_core.control.layout import LayoutName
from digen_core.sim.problem import Problem


@dataclass(frozen=True, slots=True)
class Terms:
    """What the formulas are made of, in seconds; speeds in reference devices."""

    generation: float  # W_g
    training: float  # W_t(b)
    training_unpacked: float  # W_t(1)
    rollout_speed: float  # R
    trainer_speed: float  # M
    num_groups: int  # n
    fragment: float  # one fragment on the reference device
    reference: DeviceCosts
    reward: float  # rho
    group_reward: float  # rho_1
    optimizer_step: float  # opt
    push: float
    colocated_switch: float  # both directions
    helper_switch: float  # s
    stale_share: float

    @classmethod
    def of(cls, problem: Problem, num_rollout: int | None, stale_share: float = 0.0) -> "Terms":
        """Return those of a problem, with so many rollout devices (None: all do both).

        The reference device is the first one.
        """
        work, costs = problem.workload, problem.costs(num_rollout)
        devices = problem.cluster(num_rollout)
        reference, *_ = kinds = [costs.kinds[device.kind] for device in devices]
        num_generating = len(devices) if num_rollout is None else num_rollout
        num_others = len(devices) - (num_rollout or 0) - 1
        fragments = [kind.fragment(work.fragment_size, work.mean_steps) for kind in kinds]
        packs = [kind.pack(work.pack_size) for kind in kinds]
        servers, switch = costs.reward_servers, costs.switch_to_rollout + costs.switch_to_trainer
        return cls(
            generation=reference.generation(work),
            training=reference.training(work, problem.trained_steps, work.pack_size),
            training_unpacked=reference.training(
                work, problem.trained_steps, min(work.samples_per_pack, work.pack_size)
            ),
            rollout_speed=sum(fragments[0] / own for own in fragments[:num_generating]),
            trainer_speed=sum(packs[0] / own for own in packs[num_generating:]),
            num_groups=work.num_groups,
            fragment=fragments[0],
            reference=reference,
            reward=ceil(work.num_scored / servers) * costs.reward,
            group_reward=ceil(work.group_size / servers) * costs.reward,
            optimizer_step=work.num_updates
            * (costs.optimizer_step + num_others * costs.gradient_sum),
            push=costs.push + costs.crossing({device.site for device in devices}),
            colocated_switch=switch,
            helper_switch=switch,
            stale_share=stale_share,
        )

    @property
    def speed(self) -> float:
        """P."""
        return self.rollout_speed + self.trainer_speed

    @property
    def update(self) -> float:
        """Optimizer step and push, one after the other."""
        return self.optimizer_step + self.push

    def staleness(self, most: int) -> int:
        """Return the least versions s that hide a push: s >= 1 + tail / iteration.

        An iteration takes what generation or training takes; the tail is as in ``tcss``.
        """
        trained = self.training / self.trainer_speed
        iteration = max(self.generation / self.rollout_speed, trained + self.optimizer_step)
        tail = trained / self.num_groups + self.group_reward + self.update
        return max(1, min(most, ceil(1 + tail / iteration)))


def colocated(t: Terms) -> float:
    """Return W_g/P + rho + W_t(1)/P + opt + switch + push."""
    work = (t.generation + t.training_unpacked) / t.speed
    return work + t.reward + t.colocated_switch + t.update


def colocated_strong(t: Terms) -> float:
    """Return W_g/P + rho_1 + W_t(b)/P + opt + switch + push."""
    work = (t.generation + t.training) / t.speed
    return work + t.group_reward + t.colocated_switch + t.update


def disaggregated(t: Terms) -> float:
    """Return W_g/R + rho_1 + W_t(1)/M + opt + push; best at R/M = sqrt(W_g/W_t)."""
    phases = t.generation / t.rollout_speed + t.training_unpacked / t.trainer_speed
    return phases + t.group_reward + t.update


def gap(t: Terms) -> float:
    """Return p + q + (n-1) max(p, q) + rho_1 + opt + push, q with W_t(1); best R/M = W_g/W_t."""
    return _pipeline(t, t.training_unpacked)


def tsp(t: Terms) -> float:
    """Return as gap, with W_t(b)."""
    return _pipeline(t, t.training)


def tag(t: Terms) -> float:
    """Return min(tsp, h + s + W_t(b)/M + opt + push), where all devices generate for h seconds.

    h = (R/P) (W_g/R + q - s - W_t(b)/M); helping is worth it only if h is at least one fragment.
    """
    trained = t.training / t.trainer_speed
    q = trained / t.num_groups
    until = t.generation / t.rollout_speed + q - t.helper_switch - trained
    helping = t.rollout_speed / t.speed * until
    if helping < t.fragment:
        return tsp(t)
    return min(tsp(t), helping + t.helper_switch + trained + t.update)


def tcss(t: Terms) -> float:
    """Return max(W_g/R, W_t(b)/M + opt) + (1 - min(1, share (W_g/R) / tail)) tail.

    tail = q + rho_1 + opt + push: from the last fragment until the next version is loaded, which
    stale groups fill. Without them it is tag.
    """
    if not t.stale_share:
        return tag(t)
    generated, trained = t.generation / t.rollout_speed, t.training / t.trainer_speed
    tail = trained / t.num_groups + t.group_reward + t.update
    filled = min(1.0, t.stale_share * generated / tail) if tail else 1.0
    return max(generated, trained + t.optimizer_step) + (1 - filled) * tail


def elastic(t: Terms) -> float:
    """Return min(tag, (W_g + W_t(b))/P + s + rho_1 + opt + push): nobody waits but at the end."""
    shared = (t.generation + t.training) / t.speed
    return min(tag(t), shared + t.helper_switch + t.group_reward + t.update)


def _pipeline(t: Terms, training: float) -> float:
    p = t.generation / (t.rollout_speed * t.num_groups)
    q = training / (t.trainer_speed * t.num_groups)
    return p + q + (t.num_groups - 1) * max(p, q) + t.group_reward + t.update


FORMULAS: dict[LayoutName, Callable[[Terms], float]] = {
    "colocated": colocated,
    "colocated-strong": colocated_strong,
    "disaggregated": disaggregated,
    "gap": gap,
    "tsp": tsp,
    "tag": tag,
    "tcss": tcss,
    "elastic": elastic,
}
