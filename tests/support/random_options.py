"""Options of random settings: by key of the config, values that are drawn from."""

from typing import Any

from support.layout_runs import RELATIVE

Options = dict[str, list[Any]]

RATIOS: Options = {
    "algorithm.clip_range": [1e-5, 1e-2],
    "algorithm.trained_fraction": [0.5, 0.75],
    "algorithm.kl_coefficient": [0.1],
    "algorithm.kl": ["gaussian", "flowgrpo"],
    "algorithm.kl_reward": [20.0],
    "algorithm.noise_weight": [2.25],
    "algorithm.correction": ["truncate", "reject", "icepop"],
    "algorithm.correction_bounds": [[0.9999, 1.0001]],
    "algorithm.window": [[1, 0, 3], [2, 1, 4]],
    "algorithm.window_drawn_for": ["group"],
    "algorithm.steps_drawn_for": ["sample"],
    "algorithm.max_divergence": [1e-8],
    "algorithm.log_ratio_coefficient": [0.1],
    "algorithm.tail_fraction": [0.5],
    "schedule.reference": ["generation", "training"],
}
CLEAN_LATENTS: Options = {
    "algorithm.num_levels": [2],
    "algorithm.trained_fraction": [0.75, 1.0],
    "algorithm.own_levels": [True],
    "algorithm.old_policy_decay": ["ramp", "low_ramp"],
    "algorithm.kl_coefficient": [0.1],
    "algorithm.advantage_mode": ["positive_only", "negative_only", "binary"],
    "model.train_guidance_scale": [1.0],
    "schedule.reference": ["generation", "training"],
}
PREFERRED: Options = CLEAN_LATENTS | {
    "algorithm.shared_noise": [True, False],
    "algorithm.beta": [0.3],
}
MATCHED: Options = CLEAN_LATENTS | {
    "algorithm.weighting": ["uniform", "t", "t2", "huber"],
    "algorithm.huber_power": [0.5],
    "algorithm.advantage_weight": [0.5],
    "algorithm.start_coefficient": [0.0, 2.0],
}
WINDOWS: Options = RATIOS | {
    "algorithm.strategy": ["decay", "exp_decay", "random"],
    "algorithm.stride": [0, 2],
    "algorithm.roll_back": [False],
}
PREFERENCES = {"num_levels": 2, "trained_fraction": 0.75}
ALGORITHMS: dict[str, tuple[dict[str, Any], Options]] = {
    **{name: ({}, RATIOS) for name in ("flow_grpo", "grpo_guard", "flow_dppo")},
    **{name: ({}, RATIOS) for name in ("dance_grpo", "longcat")},
    "ddpo": ({"buffer_size": 6, "min_count": 6}, RATIOS),
    "mix_grpo": ({"window_size": 2, "untrained_tail": 1, "iterations_per_window": 1}, WINDOWS),
    "diffusion_nft": ({"trained_fraction": 0.75}, CLEAN_LATENTS | {"algorithm.beta": [0.3]}),
    "awm": ({"num_levels": 2, "trained_fraction": 1.0, "first_level": 0}, MATCHED),
    "dgpo": (PREFERENCES, PREFERRED),
    "dpo": (PREFERENCES, PREFERRED),
}
"""What each needs with so few steps, and what else it may have."""

ODD_REWARD = {"type": "function", "function": "smooth_rewards:sometimes_none", "on_failure": "drop"}
ANY: Options = {
    "num_iterations": [4],
    "seed": [7],
    "rewards": [
        {"smooth_rewards:brightness": 1.0, "smooth_rewards:contrast": 0.5},
        {"smooth_rewards:partly_equal": 1.0},
        {"odd": ODD_REWARD},
        RELATIVE,
    ],
    "rollout.num_steps": [5, 6, 7],
    "rollout.prompts_per_iteration": [2, 4],
    "rollout.group_size": [6],
    "rollout.transition": ["cps", "dance", "wan_sde", "longcat_sde"],
    "rollout.noise_level": [0.3, 1.0],
    "rollout.solver": ["dpmpp_2m"],
    "rollout.initial_noise": ["group", "iteration"],
    "rollout.branches": [2],
    "rollout.storage": ["float16", "bfloat16"],
    "rollout.batch_size": [4, 8],
    "rollout.refill": [1, 2],
    "rollout.screening": [{"candidates": 7, "num_steps": 2}, {"candidates": 8}],
    "rollout.steps_per_task": [2, "auto"],
    "algorithm.mix": ["advantages"],
    "algorithm.best_of": [2, 3],
    "algorithm.advantage_scale": ["batch", "max_group", "none"],
    "algorithm.advantage_ddof": [1],
    "algorithm.advantage_eps": [1e-2],
    "algorithm.max_advantage": [0.7],
    "algorithm.trimmed_ratio": [0.25],
    "model.sizes": [[[32, 32, 1], [16, 48, 1], [48, 32, 1]]],
    "model.guidance_scale": [1.0, 5.0],
    "model.guidance_schedule": [[[0.9, 4.0], [0.3, 1.0]], [[0.8, 1.0]]],
    "model.reference_guidance_scale": [1.0, 2.0],
    "model.negative_prompt": ["blurry"],
    "model.shift": [3.0],
    "model.offload": [[], ["text_encoders", "vae"]],
    "model.vae_slicing": [True],
    "model.vae_tiling": [True],
    "model.attention": ["math"],
    "train.lora": [None, {"rank": 2, "alpha": 4.0, "init": "kaiming", "targets": ["to_q", "to_v"]}],
    "train.betas": [[0.8, 0.95]],
    "train.updates_per_iteration": [2, 3],
    "train.epochs": [2],
    "train.dealt_by": ["samples"],
    "train.ema_decay": [0, 0.5],
    "train.ema_warmup": [False],
    "train.ema_every": [2],
    "train.gradient_checkpointing": [True],
    "train.learning_rate_decay": ["cosine"],
    "train.weight_decay": [0.1],
    "train.max_grad_norm": [1e-3],
    "train.max_replay_error": [1.0],
    "numerics.samples": ["drop"],
    "numerics.updates": ["skip"],
    "schedule.push": ["delta"],
    "schedule.max_staleness": [2],
}
EXPERTS: Options = {"model.train_experts": ["high", "low"]}
"""Of models that have two."""
