"""What users get wrong in a job: one line on stderr, exit code 2, and nothing on disk."""

import errno
import json
import os
import socket
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from deployments.cli import run
from digen_core.config.load import load_config
from digen_core.preflight import network
from support.judge_servers import judging

SETTINGS = {
    "group of one": ("--rollout.group-size 1", "rollout.group_size: must be greater than or"),
    "fragments that do not divide": (
        "--rollout.fragment-size 5",
        "rollout.group_size (16) is not a multiple of rollout.fragment_size (5); choose a divisor",
    ),
    "negative learning rate": ("--train.learning-rate -1", "(got -1)"),
    "NaN learning rate": ("--train.learning-rate nan", "train.learning_rate: must be a finite"),
    "infinite reward weight": ("--rewards.shapes inf", "rewards.shapes.weight: must be a finite"),
    "a weight that sums would not survive": (
        "--rewards.shapes 1e300",
        "rewards.shapes.weight: must be less than or equal to 1e+290 (got 1e+300)",
    ),
    "learning rate in words": ("--train.learning-rate fast", "(got 'fast')"),
    "no steps in a task": ("--rollout.steps-per-task 0", "or must be 'auto' (got 0)"),
    "window outside": (
        "--algorithm.window [2,0,9]",
        "algorithm.window (size, low, high) is [2, 0, 9]; needs size >= 1",
    ),
    "window of two numbers": ("--algorithm.window [2,0]", "algorithm.window: has too few values"),
    "too much cps noise": (
        "--rollout.transition cps --rollout.noise-level 1.5",
        "rollout.noise_level is 1.5, but cps takes a share",
    ),
    "an algorithm's own key": (
        "--algorithm.type diffusion_nft --algorithm.clip_range 1e-4",
        "unknown key algorithm.clip_range: algorithm.type diffusion_nft has none",
    ),
    "more noise levels than there are": (
        "--algorithm.type diffusion_nft --algorithm.num_levels 7 --algorithm.trained_fraction 0.8",
        "(8) leaves 6 of the noise levels, fewer than algorithm.num_levels (7); lower that one",
    ),
    "unknown algorithm": (
        "--algorithm.type ppo",
        "algorithm.type: must be one of 'flow_grpo', 'grpo_guard',",
    ),
    "more tokens than a family takes": (
        "--model.max_sequence_length 600",
        "model.max_sequence_length is 600, but flux takes at most 512; use 512 or less",
    ),
    "an algorithm that waits for all rewards": (
        "--algorithm.type ddpo --schedule.layout tsp",
        "ddpo needs all rewards of the iteration, but schedule.layout tsp trains groups before",
    ),
    "prompts that are kept for no evaluation": (
        "--prompts.evaluation evaluation.txt --prompts.evaluation-fraction 0.5",
        "would be neither trained on nor evaluated; set one of them to",
    ),
    "KL in a sum of rewards that is not made": (
        "--algorithm.kl_reward 0.1 --algorithm.mix advantages",
        "algorithm.kl_reward is taken off the sum of the rewards, but algorithm.mix 'advantages'",
    ),
    "refill of groups that are never skipped": (
        "--algorithm.type ddpo --rollout.refill 1",
        "rollout.refill is 1, but ddpo skips no group, as equal rewards still differ",
    ),
    "best of more than there are": (
        "--algorithm.best_of 99",
        "algorithm.best_of (99) is above rollout.group_size",
    ),
    "ddpo with failures that are filled in": (
        "--algorithm.type ddpo --rewards.shapes.on_failure neutral --rewards.shapes.weight 1",
        "rewards.shapes.on_failure is 'neutral', but ddpo would remember the rewards",
    ),
    "all but one trimmed": (
        "--algorithm.trimmed_ratio 0.99",
        "algorithm.trimmed_ratio (0.99) leaves one reward of rollout.group_size",
    ),
    "a transition that the maths is not for": (
        "--algorithm.type grpo_guard --rollout.transition cps",
        "algorithm.type grpo_guard is not for rollout.transition cps; use flow_sde or dance",
    ),
    "branches that are no part of a group": (
        "--rollout.branches 5",
        "rollout.branches is 5, with rollout.group_size 16 and rollout.initial_noise 'sample'; "
        "use a divisor of the group's size",
    ),
    "branches of one noise": (
        "--rollout.branches 4 --rollout.initial_noise group",
        "rollout.branches is 4, with rollout.group_size 16 and rollout.initial_noise 'group'",
    ),
    "samples that start alike and have no noise later": (
        "--algorithm.type diffusion_nft --rollout.initial_noise group",
        "rollout.initial_noise is 'group', but algorithm.type diffusion_nft generates without "
        "noise, so that samples of a group that start from one would be the same",
    ),
    "branches without a noisy step": (
        "--algorithm.type dpo --rollout.branches 4",
        "rollout.branches is 4, but algorithm.type dpo generates without noise",
    ),
    "a window for each group without a window": (
        "--algorithm.window_drawn_for group",
        "algorithm.window_drawn_for is 'group', but algorithm.window is null",
    ),
    "no step after the window": (
        "--algorithm.type mix_grpo --algorithm.tail_fraction 0",
        "algorithm.tail_fraction: must be greater than 0 (got 0)",
    ),
    "steps of prompts beside fewer after the window": (
        "--algorithm.type mix_grpo --algorithm.tail_fraction 0.4 --prompts.steps_column n",
        "prompts.steps_column is 'n', but algorithm.tail_fraction takes fewer steps than",
    ),
    "a solver that no step is taken by": (
        "--rollout.solver dpmpp_2m",
        "rollout.solver is dpmpp_2m, but algorithm.type flow_grpo has noise in 7 of "
        "rollout.num_steps (8), and the last one is an Euler step; use a window of noisy steps",
    ),
    "a solver after a window that is nowhere": (
        "--rollout.solver dpmpp_2m --algorithm.window [2,7,8]",
        "algorithm.window (size, low, high) is [2, 7, 8]; needs size >= 1",
    ),
    "a solver where no step is trained": (
        "--rollout.solver dpmpp_2m --algorithm.type dance_grpo --algorithm.trained_fraction 0.1",
        "trained_fraction (0.1) of rollout.num_steps (8) is no step at all",
    ),
    "unknown solver": ("--rollout.solver dpm", "rollout.solver: must be 'euler' or 'dpmpp_2m'"),
    "a window that does not fit": (
        "--algorithm.type mix_grpo --algorithm.window_size 9",
        "algorithm.window_size (9) and algorithm.untrained_tail (2) are more than rollout.num",
    ),
    "KL rewards of steps that no group shares": (
        "--prompts.steps_column T --algorithm.kl_reward 0.1 --algorithm.advantage_scale batch "
        "--schedule.layout colocated",
        "prompts.steps_column is 'T', but algorithm.kl_reward (0.1) with advantage_scale 'batch' "
        "compares each step of all groups; use advantage_scale 'group' or 'none'",
    ),
    "steps of samples from files": (
        "--prompts.steps_column T --prompts.sample_columns ['a','b'] --algorithm.type dpo",
        "prompts.steps_column is 'T', but samples come from files (prompts.sample_columns), so",
    ),
    "no column of steps": (
        "--prompts.steps_column T",
        "train.txt has no column 'T', which the config's [prompts] names; it has prompt",
    ),
    "rounded latents without their noise": (
        "--algorithm.type flow_dppo --rollout.storage float16",
        "rollout.storage is float16, but algorithm.type flow_dppo takes the noise back out",
    ),
    "rollouts in float8 without a correction": (
        "--rollout.precision float8",
        "rollout.precision is 'float8', so that log-probs of samples are not those of the trained "
        "model, but algorithm.correction is 'none', which takes ratios to them; use 'recompute'",
    ),
    "samples from files in float8": (
        "--prompts.sample_columns ['a','b'] --algorithm.type dpo --rollout.group_size 2 "
        "--rollout.precision float8",
        "rollout.precision is 'float8', but samples come from files (prompts.sample_columns), so",
    ),
    "correction bounds that take the run's own samples out": (
        "--algorithm.correction reject --algorithm.correction_bounds [1.5,2]",
        "w is 1 for what the trained version sampled",
    ),
    "correction bounds": (
        "--algorithm.correction reject --algorithm.correction_bounds [2,1]",
        "algorithm.correction_bounds are [2.0, 1.0]; needs 0 <= low <= 1 <= high",
    ),
    "unknown transition": (
        "--rollout.transition sde",
        "must be 'flow_sde', 'cps', 'dance', 'wan_sde' or 'longcat_sde'",
    ),
    "no rewards": ("--rewards {}", "rewards is empty; name at least one"),
    "rewards that weigh nothing": ("--rewards.shapes 0", "rewards {'shapes': 0.0} all weigh 0"),
    "unknown reward": ("--rewards.shaps 1", "unknown reward 'shaps'; did you mean shapes?"),
    "reward module that is missing": (
        "--rewards.nowhere:f 1",
        "cannot import 'nowhere' of 'nowhere:f': No module named 'nowhere'; it must be installed",
    ),
    "reward of a script or notebook": (
        "--rewards.__main__:f 1",
        "'__main__:f' is of the script or notebook that starts the run, which workers do not",
    ),
    "reward function that is missing": ("--rewards.json:f 1", "'json' has no function 'f'"),
    "reward that is no function": ("--rewards.math:pi 1", "'math' has no function 'pi'"),
    "reward without function": ("--rewards.json: 1", "'json:' is neither module:function nor"),
    "unknown family": (
        "--model.family unet",
        "model.family: must be 'flux', 'sd3', 'qwen_image', ",
    ),
    "another family": (
        "--model.family sd3",
        "holds a FluxPipeline, but model.family 'sd3' needs a StableDiffusion3Pipeline",
    ),
    "video of an image family": (
        "--model.num-frames 5",
        "model.num_frames is 5, but flux makes images; use 1, or a video family (wan, hunyuan",
    ),
    "frames that do not fit": (
        "--model.family wan --model.num-frames 8",
        "model.num_frames is 8; video models take 1 + a multiple of 4: use 5",
    ),
    "frames that do not fit LTX-2": (
        "--model.family ltx2 --model.num-frames 30",
        "model.num_frames is 30; video models take 1 + a multiple of 4 (ltx2: of 8): use 25",
    ),
    "few frames for LTX-2": (
        "--model.family ltx2 --model.num-frames 4",
        "model.num_frames is 4; video models take 1 + a multiple of 4 (ltx2: of 8): use 9",
    ),
    "reward of videos for images": (
        "--rewards.motion 1",
        "the reward 'motion' takes videos, but model.num_frames is 1; use several frames",
    ),
    "flicker of images": (
        "--rewards.temporal_flickering 1",
        "the reward 'temporal_flickering' takes videos, but model.num_frames is 1; use several",
    ),
    "own reward of videos for images": (
        "--rewards.json:dumps.takes videos",
        "the reward 'json:dumps' takes videos, but model.num_frames is 1",
    ),
    "remote reward of latents": (
        "--rewards.remote {url='http://x/',takes='latents'}",
        "rewards.remote.takes: must be 'images' or 'videos' (got 'latents')",
    ),
    "judge of latents": (
        "--rewards.judge {url='http://x/v1',model='m',takes='latents'}",
        "rewards.judge.takes: must be 'images' or 'videos' (got 'latents')",
    ),
    "a reward of images as one of latents": (
        "--rewards.shapes.takes latents",
        "unknown key rewards.shapes.takes",
    ),
    "a size of no pixels": (
        "--model.sizes [[0,32,1]]",
        "model.sizes[0] is [0, 32, 1]; needs height and width of at least 8 pixels",
    ),
    "a video among the sizes of images": (
        "--model.sizes [[32,32,1],[32,32,5]]",
        "the number of frames of model.sizes[1] is 5, but flux makes images; use 1, or a video",
    ),
    "a size of two numbers": (
        "--model.sizes [[32,32]]",
        "model.sizes: has too few values (got [32, 32])",
    ),
    "no key of an adapter": (
        "--model.adapters.my-style.pth x",
        "unknown key model.adapters.my-style.pth; did you mean model.adapters.my-style.path?",
    ),
    "an adapter as a value": (
        "--model.adapters.my-style x",
        "model.adapters.my-style is a table of keys; set one of them, for example model.adapters.my"
        "-style.path",
    ),
    "an adapter that is nowhere": (
        "--model.adapters.my-style.path x",
        "model.adapters.my-style.path x is neither a folder or file (seen from",
    ),
    "an adapter's weight in words": (
        "--model.adapters.my-style.weight x --model.adapters.my-style.path y",
        "model.adapters.my-style.weight: must be a valid number, unable to parse string as a",
    ),
    "an adapter with a blank": (
        "--model.adapters.a+b.path x",
        "model.adapters has the name 'a+b', which is not made of letters, digits, _ and - only",
    ),
    "shift of 0": ("--model.shift 0", "model.shift: must be greater than or equal to 0.001"),
    "shift that leaves noise alone": (
        "--model.shift 1e6",
        "model.shift: must be at most 1000: the noise levels of several steps would be the same",
    ),
    "noise levels that are the same as float32": (
        "--model.sigmas [1.0,0.99999999,0.5]",
        "model.sigmas is [1.0, 0.99999999, 0.5]; name the noise levels of at least two steps, each",
    ),
    "noise levels that do not fall": (
        "--model.sigmas [1,0.5,0.7]",
        "model.sigmas is [1.0, 0.5, 0.7]; name the noise levels of at least two steps, each once",
    ),
    "a noise level of 0": (
        "--model.sigmas [1,0.5,0]",
        "model.sigmas: must be greater than 0 (got 0)",
    ),
    "noise levels that begin late": (
        "--model.sigmas [0.909375,0.725,0.421875]",
        "model.sigmas begins at 0.909375, but trajectories begin at pure noise; begin at 1, or",
    ),
    "noise levels beside a shift": (
        "--model.sigmas [1,0.5] --model.shift 3",
        "model.sigmas names noise levels, and model.shift is 3, which makes others; leave one",
    ),
    "noise levels of another number of steps": (
        "--model.sigmas [1,0.9,0.5]",
        "rollout.num_steps is 8, but model.sigmas names the noise levels of 3 steps; use 3",
    ),
    "evaluations of another number of steps": (
        "--model.sigmas [1,0.9,0.5] --rollout.num_steps 3 --evaluation.num_steps 20",
        "evaluation.num_steps is 20, but model.sigmas names the noise levels of 3 steps; use 3",
    ),
    "steps of prompts beside noise levels": (
        "--model.sigmas [1,0.9,0.5] --rollout.num_steps 3 --prompts.steps_column T",
        "prompts.steps_column is 'T', but model.sigmas names the noise levels of all steps; use",
    ),
    "fewer steps after the window than noise levels": (
        "--model.sigmas [1,0.9,0.8,0.7,0.6,0.5,0.4,0.3] --algorithm.type mix_grpo "
        "--algorithm.tail_fraction 0.4",
        "algorithm.tail_fraction is below 1, but model.sigmas names the noise levels of all steps",
    ),
    "reward that lacks an option": ("--rewards.hps 1", "rewards.hps.path: a value is missing"),
    "reward model without its instruction": (
        "--rewards.hps3 1",
        "rewards.hps3.template: a value is missing",
    ),
    "reward model with an instruction that is nowhere": (
        "--rewards.hps3.template hps3.txt",
        "rewards.hps3.template: cannot read the template hps3.txt: No such file or directory; docs",
    ),
    "reward model of videos without their speed": (
        "--rewards.video_reward.template a.txt",
        "rewards.video_reward.frames_per_second: a value is missing",
    ),
    "dimension that VideoReward has not": (
        "--rewards.video_reward {template='a.txt',frames_per_second=16,dimensions=['aq']}",
        "rewards.video_reward.dimensions.0: must be 'vq', 'mq' or 'ta' (got 'aq')",
    ),
    "unknown option of a reward": (
        "--rewards.quality {type='remote',url='http://x',batchsize=3}",
        "unknown key rewards.quality.batchsize: did you mean rewards.quality.batch_size?",
    ),
    "option of no reward": (
        "--rewards.shapes.xyzzy 3",
        "unknown key rewards.shapes.xyzzy: it has weight, on_failure, max_attempts,",
    ),
    "unknown type of reward": (
        "--rewards.quality.type pixscore",
        "unknown reward 'pixscore'; did you mean pickscore?",
    ),
    "reward without type": (
        "--rewards.quality.url http://x",
        "unknown reward 'quality'; its type is one of shapes, shapes_edit,",
    ),
    "reward name with a blank": ("--rewards.a+b 1", "the reward name 'a+b' is neither module:func"),
    "reward name that MLflow would not take": (
        "--rewards {'x:y,w'={type='shapes'}}",
        "the reward name 'x:y,w' is neither module:function nor made of letters, digits, _ and -",
    ),
    "reward name with a slash": (
        "--rewards {'x/y:z'={type='shapes'}}",
        "the reward name 'x/y:z' is neither module:function nor",
    ),
    "remote reward elsewhere": (
        "--rewards.q {type='remote',url='ftp://x'}",
        "rewards.q.url: must match ^https?://\\S+$ (got 'ftp://x')",
    ),
    "judge without a model": (
        "--rewards.judge.url http://x/v1",
        "rewards.judge.model: a value is missing",
    ),
    "judge at an address with a query": (
        "--rewards.judge {url='http://x/v1?a=b',model='m'}",
        "rewards.judge.url: must match ^https?://[^\\s/?#@]+(/[^\\s?#]*)?$ (got 'http://x/v1?a=b')",
    ),
    "judge with a template that digen has not": (
        "--rewards.judge {url='http://x/v1',model='m',template='digen:judges/aligment.toml'}",
        "rewards.judge.template: digen ships only digen:judges/alignment.toml, digen:judges/e",
    ),
    "judge with a template that is nowhere": (
        "--rewards.judge {url='http://x/v1',model='m',template='alignment'}",
        "rewards.judge.template: there is no judge's template alignment (seen from",
    ),
    "judge with a folder as its template": (
        "--rewards.judge {url='http://x/v1',model='m',template='/'}",
        "rewards.judge.template: cannot read the judge's template /: it is a folder, not a file",
    ),
    "pairs with a template for single samples": (
        "--rewards.pairwise {url='http://x/v1',model='m',template='digen:judges/quality.toml'}",
        "rewards.pairwise.template: digen:judges/quality.toml: score is 'rubric', which is for the "
        "reward type 'judge'; use choice, verdict",
    ),
    "a judge with a template for pairs": (
        "--rewards.judge {url='http://x/v1',model='m',template='digen:judges/pairwise.toml'}",
        "rewards.judge.template: digen:judges/pairwise.toml: score is 'choice', which is for the "
        "reward type 'pairwise'; use yes_no, rubric, pattern",
    ),
    "pairs with more opponents than there are": (
        "--rewards.pairwise {url='http://x/v1',model='m',opponents=99}",
        "rewards.pairwise.opponents is 99, but of a group of",
    ),
    "pairs with no opponent": (
        "--rewards.pairwise {url='http://x/v1',model='m',opponents=0}",
        "rewards.pairwise.opponents: must be greater than or equal to 1 (got 0)",
    ),
    "ranks of nothing": (
        "--rewards.ranked 1",
        "rewards.ranked.of: a value is missing",
    ),
    "ranks of what is not there": (
        "--rewards.ranked.of shape",
        "rewards.ranked.of is 'shape', which is no reward of this config; add it, with weight = 0",
    ),
    "given rewards of samples that are generated": (
        "--rewards.given {values=[1,0]}",
        "rewards.given is what the rows of the prompts say of samples that come with them, but "
        "prompts.sample_columns names none; name the columns of these images",
    ),
    "samples from files without a column for each": (
        "--prompts.sample_columns ['a','b'] --algorithm.type dpo",
        "prompts.sample_columns is ['a', 'b'], 2 of them, but rollout.group_size is 16; name a "
        "column for each sample of a group, or set rollout.group_size to 2",
    ),
    "empty prompts for samples that are generated": (
        "--prompts.empty_fraction 0.2",
        "prompts.empty_fraction is 0.2, but samples are generated, of prompts that a model is "
        "given; name the columns of samples",
    ),
    "no prompt at all": (
        "--prompts.empty_fraction 1",
        "prompts.empty_fraction: must be less than 1 (got 1)",
    ),
    "a column of samples twice": (
        "--prompts.sample_columns ['a','a'] --algorithm.type dpo --rollout.group_size 2",
        "prompts.sample_columns is ['a', 'a'], which names a column twice",
    ),
    "samples from files for what learns from their steps": (
        "--prompts.sample_columns ['a','b'] --rollout.group_size 2",
        "but algorithm.type flow_grpo learns from the steps that led to samples, which no file "
        "holds; use dpo, dgpo, diffusion_nft or awm",
    ),
    "samples from files for a model of videos": (
        "--prompts.sample_columns ['a','b'] --rollout.group_size 2 --algorithm.type dpo "
        "--model.family wan --model.path x",
        "but model.family wan makes videos; samples come from files for families of images only",
    ),
    "given rewards that nothing says": (
        "--prompts.sample_columns ['a','b'] --rollout.group_size 2 --algorithm.type dpo "
        "--rewards.given 1",
        "rewards.given has neither columns nor values; set one of them",
    ),
    "given rewards that two things say": (
        "--prompts.sample_columns ['a','b'] --rollout.group_size 2 --algorithm.type dpo "
        "--rewards.given {values=[1,0],columns=['c','d']}",
        "rewards.given has both columns and values; set one of them",
    ),
    "given rewards of other samples": (
        "--prompts.sample_columns ['a','b'] --rollout.group_size 2 --algorithm.type dpo "
        "--rewards.given.columns ['c']",
        "rewards.given.columns is ['c'], 1 of them, but a row has 2 samples",
    ),
    "a given reward that is no number": (
        "--prompts.sample_columns ['a','b'] --rollout.group_size 2 --algorithm.type dpo "
        "--rewards.given.values [1,nan]",
        "rewards.given.values",
    ),
    "ranks that could fail": (
        "--rewards.ranked {of='shapes',on_failure='drop'}",
        "rewards.ranked.on_failure",
    ),
    "ranks that remember": (
        "--algorithm.type ddpo --rewards {shapes=0,ranked={of='shapes'}}",
        "rewards.ranked compares the samples of a group, but ddpo compares a prompt's rewards with",
    ),
    "a reward that sees something else": (
        "--rewards.remote {url='http://x/',sees='pairs'}",
        "rewards.remote.sees: must be 'samples' or 'groups' (got 'pairs')",
    ),
    "a shapes reward that sees groups": (
        "--rewards.shapes.sees groups",
        "unknown key rewards.shapes.sees",
    ),
    "groups in requests that are too small": (
        "--rewards.remote {url='http://x/',sees='groups',batch_size=1}",
        "rewards.remote sees groups, but its batch_size (1) is below rollout.group_size",
    ),
    "the best of what compares samples": (
        "--rewards {shapes=0,ranked={of='shapes'}} --checkpoints.keep_best 1",
        "checkpoints.best_by is 'evaluation/reward', but rewards that tell only the samples of a",
    ),
    "the best of versions that are not evaluated": (
        "--checkpoints.keep_best 1",
        "checkpoints.best_by is 'evaluation/reward', but evaluation.every is 0, so that only the "
        "last version is evaluated; set evaluation.every to the iterations between two evaluations",
    ),
    "the best of a reward that there is not": (
        "--checkpoints.keep_best 1 --checkpoints.best_by evaluation/shape/exact",
        "checkpoints.best_by is 'evaluation/shape/exact', but this config has no reward 'shape'; "
        "use evaluation/reward, or evaluation/NAME/score with one of shapes",
    ),
    "the best of a reward as a whole": (
        "--checkpoints.keep_best 1 --checkpoints.best_by evaluation/shapes",
        "checkpoints.best_by is 'evaluation/shapes', but the reward 'shapes' has several numbers; "
        "use evaluation/reward, or evaluation/NAME/score with one of shapes",
    ),
    "the best of a divergence that nothing asks": (
        "--checkpoints.keep_best 1 --checkpoints.best_by train/kl",
        "checkpoints.best_by is 'train/kl', which no iteration of this config tells; use "
        "evaluation/reward, or one of train/loss",
    ),
    "the best of what no iteration tells of rewards": (
        "--checkpoints.keep_best 1 --checkpoints.best_by reward/shapes",
        "checkpoints.best_by is 'reward/shapes', which no iteration of this config tells; use "
        "evaluation/reward, or one of reward/mean, reward/std, reward/shapes/score",
    ),
    "judge without a request": (
        "--rewards.judge {url='http://x/v1',model='m',concurrency=0}",
        "rewards.judge.concurrency: must be greater than or equal to 1 (got 0)",
    ),
    "judge of videos for images": (
        "--rewards.judge {url='http://x/v1',model='m',takes='videos'}",
        "the reward 'judge' takes videos, but model.num_frames is 1",
    ),
    "no attempt": (
        "--rewards.shapes.max_attempts 0",
        "rewards.shapes.max_attempts: must be greater than or equal to 1 (got 0)",
    ),
    "unknown failure policy": (
        "--rewards.shapes.on-failure ignore",
        "rewards.shapes.on_failure: must be 'fail', 'neutral' or 'drop' (got 'ignore')",
    ),
    "unknown policy for samples that are NaN": (
        "--numerics.samples ignore",
        "numerics.samples: must be 'fail' or 'drop' (got 'ignore')",
    ),
    "a policy of samples for updates": (
        "--numerics.updates drop",
        "numerics.updates: must be 'fail' or 'skip' (got 'drop')",
    ),
    "reward model that is nowhere": (
        "--rewards.clipscore.path a/b/c",
        "rewards.clipscore.path a/b/c is neither a folder (seen from",
    ),
    "aesthetic head that is nowhere": (
        "--rewards.aesthetic.head no.safetensors",
        "rewards.aesthetic.head no.safetensors is no file (seen from",
    ),
    "options for a function": (
        "--rewards.json:dumps.options.a 1",
        "'json:dumps' is a function, but has the options {'a': 1}; only a class takes them",
    ),
    "prompts without quoted text": (
        "--rewards {ocr=1}",
        "train.txt line 1 is not for the reward 'ocr': the prompt 'a red circle' quotes no text",
    ),
    "a text column that rewards do not get": (
        '--rewards {ocr={text_column="text"}}',
        "'ocr' has the text_column 'text', which is not one of prompts.metadata_columns []; add",
    ),
    "a cosine that is none": (
        "--rewards {clipscore={counts='cos'}}",
        "rewards.clipscore.counts: must be 'clipscore' or 'cosine' (got 'cos'; did",
    ),
    "a smoothing that is none": (
        "--rewards {consistency={antialias=3}}",
        "rewards.consistency.antialias: ",
    ),
    "a text to compare with that rewards do not get": (
        '--rewards {clipscore={text_column="info.style"}}',
        "'clipscore' has the text_column 'info.style', which begins with none of "
        "prompts.metadata_columns []; add info there",
    ),
    "a column of a text file": (
        "--prompts.metadata-columns ['text']",
        "train.txt has no column 'text', which the config's [prompts] names; it has prompt",
    ),
    "no rows of a split": (
        "--prompts.split-column prompt",
        "train.txt has no row whose 'prompt' is 'train', but 'a blue square', 'a green circle'",
    ),
    "unknown dtype": ("--model.dtype int8", "model.dtype: must be 'float64',"),
    "true for a number": (
        "--num-iterations true",
        "num_iterations: must be a number (got True)",
    ),
    "true among numbers": ("--train.betas [0.9,true]", "train.betas: must be a number (got True)"),
    "true in a table of numbers": (
        "--cluster.price-per-hour {cpu=true}",
        "cluster.price_per_hour: must be a number (got True)",
    ),
    "true in place of a word or a number": (
        "--rollout.fragment-size true",
        "rollout.fragment_size: must be a number (got True)",
    ),
    "graphs on a cpu": (
        "--rollout.cuda-graphs true --model.device cpu",
        "rollout.cuda_graphs is true, which takes a GPU, but samples would be generated on a cpu",
    ),
    "graphs of members that compute together": (
        "--rollout.cuda-graphs true --parallel.stages 2",
        "rollout.cuda_graphs is true, but with parallel.stages the members of a gang compute a",
    ),
    "unknown device": ("--model.device gpu", "model.device 'gpu' is none; use auto, cpu or cuda"),
    "no such model folder": ("--model.path a/b/c", "model.path a/b/c is neither a folder (seen"),
    "model path that is a file": ("--model.path job.toml", "model.path job.toml is a file"),
    "model folder without index": ("--model.path model/vae", "has no model_index.json; give the"),
    "lora of rank 0": ("--train.lora.rank 0", "train.lora.rank: must be greater than or equal"),
    "beta of 1": ("--train.betas [0.9,1.0]", "train.betas are [0.9, 1.0]; each must be in"),
    "three betas": ("--train.betas [0.9,0.9,0.9]", "train.betas: must have 2 or fewer values"),
    "one beta": ("--train.betas 0.9", "train.betas: must be a list, as in [1, 2] (got 0.9)"),
    "no targets": ("--train.lora.targets []", "train.lora.targets: must have 1 or more values"),
    "empty target": (
        "--train.lora.targets ['to_q','']",
        "train.lora.targets: must not be empty (got '')",
    ),
    "no trained step": (
        "--algorithm.trained-fraction 0.1",
        "trained_fraction (0.1) of rollout.num_steps (8) is no step at all",
    ),
    "bad name": ("--name a/b", "name: must match ^[A-Za-z0-9][A-Za-z0-9_.-]*$ (got 'a/b')"),
    "long name": (f"--name {'a' * 101}", "name: must have at most 100 characters (got 'aaa"),
    "large seed": (f"--seed {2**63}", "seed: must be less than 9223372036854775808 (got 9223"),
    "prompts of nowhere": ("--prompts.train=", "prompts.train: must not be empty (got '')"),
    "too few prompts": (
        "--rollout.prompts-per-iteration 4",
        "is 4, but train.txt has only 3 prompts to train on; use at most 3",
    ),
    "missing prompt file": ("--prompts.train no.txt", "cannot read the prompt file no.txt"),
    "prompt file that is a folder": (
        "--prompts.train model",
        "is no folder of prompts that is known for prompts.train; name a file",
    ),
    "profile that is nowhere": (
        "--schedule.profile no.json",
        "cannot read the profile no.json: No such file or directory; give the profile.json",
    ),
    "profile of something else": (
        "--schedule.profile model/model_index.json",
        "model/model_index.json is no profile of a run: ",
    ),
    "no iteration in Prefect": (
        "--tracking.keep-in-prefect 0",
        "tracking.keep_in_prefect: must be greater than or equal to 1",
    ),
    "runs_dir that is a file": (
        "--tracking.runs-dir job.toml",
        "tracking.runs_dir is job.toml, but job.toml is a file",
    ),
    "runs_dir below a file": (
        "--tracking.runs-dir job.toml/runs",
        "tracking.runs_dir is job.toml/runs, but job.toml is a file",
    ),
    "unknown key": ("--rollout.gruop-size 4", "unknown key rollout.gruop_size; did you mean"),
    "unknown table": ("--xyzzy.plugh 4", "'digen config show' lists all keys"),
    "table as a value": ("--rollout 4", "rollout is a table of keys; set one of them"),
    "setting without value": ("--seed", "--seed needs a value, as in --seed VALUE"),
    "setting without value before another": ("--seed --name x", "--seed needs a value"),
    "two configs": ("other.toml", "unexpected argument 'other.toml'"),
    "single hyphen": ("-s 4", "unexpected argument '-s'; settings look like --seed 1"),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_bad_setting_is_refused(case, refused):
    settings, message = SETTINGS[case]
    assert message in refused(["train", "job.toml", *settings.split()])


def write(name, content):
    """Return a function that spoils one file of the job."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda job: (job / name).write_bytes(data)


def append(name, text):
    """Return a function that adds to one file of the job."""
    return lambda job: (job / name).write_text((job / name).read_text() + text)


def index_of(**changes):
    return write("model/model_index.json", json.dumps({"_class_name": "FluxPipeline", **changes}))


FILES = {
    "missing config": (lambda job: (job / "job.toml").rename(job / "jobs.toml"), "did you mean"),
    "config that is not TOML": (write("job.toml", "seed: 1"), "job.toml is not valid TOML"),
    "config that is not text": (write("job.toml", b"\xff\xfe\x00"), "job.toml is not valid TOML"),
    "unknown key": (
        append("job.toml", "gruop_size = 4"),
        "unknown key rollout.gruop_size: did you mean rollout.group_size?",
    ),
    "unknown table": (write("job.toml", "[rolout]\nseed = 1"), "unknown key rolout: did you mean"),
    "wrong type": (write("job.toml", "seed = 'x'"), "seed: must be a valid integer, unable"),
    "value for a table": (write("job.toml", "train = 3"), "train: is a table of keys (got 3)"),
    "empty prompt file": (
        write("train.txt", "\n  \n"),
        "the prompt file train.txt holds no prompt; write one a line",
    ),
    "binary prompt file": (write("evaluation.txt", b"\x89PNG\xff"), "file evaluation.txt: 'utf-8'"),
    "overlapping prompts": (
        write("evaluation.txt", "two red squares\nA red  circle\n"),
        "1 of 2 evaluation prompts are trained on, the first being 'A red circle'",
    ),
    "overlapping scenes": (
        lambda job: (
            write("train.txt", "a red circle\na red circle left of a blue square\n")(job),
            write("evaluation.txt", "a blue square right of a red circle\n")(job),
        ),
        "'a blue square right of a red circle' asks for the same as the train prompt 'a red circle",
    ),
    "prompt outside the grammar": (
        write("train.txt", "a red circle\n\na purple cow\n"),
        "train.txt line 3 is not for the reward 'shapes': prompt 'a purple cow' is outside",
    ),
    "model of another class": (
        index_of(_class_name="FluxImg2ImgPipeline"),
        "holds a FluxImg2ImgPipeline, but model.family 'flux' needs a FluxPipeline",
    ),
    "model without class": (write("model/model_index.json", "[]"), "model holds a None, but"),
    "model index that is not JSON": (
        write("model/model_index.json", "{"),
        "cannot read the model's index model/model_index.json: Expecting",
    ),
    "model with a part missing": (
        index_of(text_encoder_2=["transformers", "T5EncoderModel"]),
        "model.path model lacks the subfolder text_encoder_2",
    ),
    "model with an empty part": (
        lambda job: (
            [file.unlink() for file in (job / "model/vae").iterdir()],
            index_of(vae=["diffusers", "AutoencoderKL"])(job),
        ),
        "model.path model lacks the subfolder vae",
    ),
    "image that does not fit the model": (
        write("model/vae/config.json", '{"block_out_channels": [8, 8, 8, 8, 8, 8]}'),
        "model.height x model.width is 40 x 40; this flux model needs multiples of 64.",
    ),
    "tokenizer without vocabulary": (
        lambda job: (job / "model/tokenizer/tokenizer.json").rename(job / "model/tokenizer/x"),
        "model.path model lacks a vocabulary in tokenizer: spiece.model or tokenizer.json or",
    ),
}


def test_a_broken_reward_is_refused_before_anything_starts(job, refused):
    (job / "my.py").write_text("def f(images, prompts):\n    return images.mean()\n")
    message = refused(["train", "job.toml", "--rewards", "{'my:f' = 1.0}"])
    assert message == (
        "reward 'my:f' returned shape () for 2 images; it was tried on two grey images, 40 x 40 "
        "for 'a red circle'"
    )


def test_a_broken_reward_whose_failure_is_neutral_is_warned_of(job, local, capsys):
    (job / "mine.py").write_text("def f(images, prompts):\n    return images.mean()\n")
    neutral = "{'mine:f' = {on_failure = 'neutral'}}"
    assert run(["train", "job.toml", "--rewards", neutral]) == 0
    err = capsys.readouterr().err
    assert err.startswith("digen: warning: reward 'mine:f' returned shape () for 2 images; it was")
    assert err.count("\n") == 1
    assert len(local.calls) == 1


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_refused(case, job, refused):
    spoil, message = FILES[case]
    spoil(job)
    assert message in refused(["train", "job.toml"])


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (
            "def f(images): ...",
            "",
            "is called with (images, prompts), but takes (images): too",
        ),
        ("def f(*, x): ...", "", "is called with (images, prompts), but takes (*, x): "),
        (
            "def f(x): ...",
            ".takes latents",
            "is called with (latents, prompts), but takes (x): too many",
        ),
        ("class f:\n  def __init__(self): ...", "", "is made with (device), but takes (): got an"),
        (
            "class f:\n  def __init__(self, device, size): ...",
            ".options.sise",
            "is made with (device, sise), but takes (device, size): missing a required argument",
        ),
        (
            "class f:\n  def __init__(self, device): ...\n  def __call__(self, images): ...",
            "",
            "is called with (images, prompts), but takes (images): too",
        ),
        (
            "import torch\nclass f(torch.nn.Module):\n"
            "  def __init__(self, device): ...\n  def forward(self, images): ...",
            "",
            "is called with (images, prompts), but takes (images): too",
        ),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused(job, refused, code, options, message):
    name = f"called_{abs(hash(code))}"
    (job / f"{name}.py").write_text(code)
    key, _, value = options.partition(" ")
    found = refused(["train", "job.toml", f"--rewards.{name}:f{key}", value or "1"])
    assert found.startswith(f"rewards: '{name}:f' {message}")


def test_a_module_that_lacks_the_function_is_not_said_to_be_missing(refused):
    found = refused(["train", "shapes_smoke", "--rewards.json:f", "1"])
    assert found.strip() == "rewards: 'json' has no function 'f'"


def test_a_reward_whose_objects_cannot_be_called_is_refused(job, refused):
    (job / "mute.py").write_text("class f:\n  def __init__(self, device): ...")
    found = refused(["train", "job.toml", "--rewards.mute:f", "1"])
    assert found.startswith("rewards: objects of 'mute:f' cannot be called; add __call__")


def test_a_token_that_is_not_there_is_refused(job, refused, local, monkeypatch):
    reward = "{type='remote',url='http://127.0.0.1:1',token_variable='NO_SUCH_TOKEN'}"
    arguments = ["train", "job.toml", "--rewards.q", reward, "--rewards.q.max_attempts", "1"]
    assert refused(arguments).startswith("rewards.q.token_variable is NO_SUCH_TOKEN, which is not")
    monkeypatch.setenv("NO_SUCH_TOKEN", "x")
    assert "reward 'q' failed: http://127.0.0.1:1 cannot be reached" in refused(arguments)


def test_a_judges_template_with_a_column_that_is_not_read_is_refused(job, refused):
    (job / "q.txt").write_text("Is it {prompt} of the kind {kind}?")
    reward = "{url='http://127.0.0.1:1/v1',model='m',template='q.txt'}"
    assert refused(["train", "job.toml", "--rewards.judge", reward]).startswith(
        "rewards.judge.template: it names {kind}, which is neither {prompt} nor one of "
        "prompts.metadata_columns []; add it there"
    )


def test_a_prompt_without_questions_and_a_template_that_asks_none_are_refused(job, refused):
    reward = "{url='http://127.0.0.1:1/v1',model='m'%s}"
    asked = ["train", "job.toml", "--rewards.dpg"]
    own = reward % ",template='digen:judges/alignment.toml'"
    assert refused([*asked, own]) == (
        "rewards.dpg.template: digen:judges/alignment.toml asks nothing; put {question} into it"
    )
    columns = ["proposition_id", "dependency", "tuple", "question_natural_language"]
    assert refused([*asked, reward % ""]) == (
        f"the reward 'dpg' is told by the columns {', '.join(columns)} what a prompt asks for, but "
        f"prompts.metadata_columns is []; add {', '.join(columns)}"
    )
    named = ["--rollout.prompts_per_iteration=1"]
    for part, prompt in {"train": "a red circle", "evaluation": "a blue square"}.items():
        row = {"prompt": prompt, **{key: [1] for key in columns}}
        (job / f"{part}.jsonl").write_text(json.dumps(row))
        named.append(f"--prompts.{part}={part}.jsonl")
    named.append(f"--prompts.metadata_columns={json.dumps(columns)}")
    assert refused([*asked, reward % "", *named]).startswith(
        "train.jsonl line 1 is not for the reward 'dpg': the tuple of its question 1 is 1, which "
    )


def test_prompts_of_which_no_kind_is_asked_about_are_refused(job, refused):
    reward = "{url='http://127.0.0.1:1/v1',model='m'%s}"
    asked = ["train", "job.toml", "--rewards.judged_kinds"]
    assert refused([*asked, reward % ""]).startswith(
        "the reward 'judged_kinds' asks about none of the prompts: of prompts.metadata_columns [] "
        "none says a kind that it knows (category: spatial, 3d_spatial, numeracy, complex; dime"
    )
    assert refused([*asked, reward % ",template='digen:judges/alignment.toml'"]) == (
        "rewards.judged_kinds.template: digen:judges/alignment.toml asks nothing; put {question} "
        "into it"
    )


def test_prompts_without_questions_for_a_blip_are_refused(job, refused):
    assert refused(["train", "job.toml", "--rewards.dpg_blip", "1"]).startswith(
        "the reward 'dpg_blip' is told by the columns proposition_id, dependency, tuple, question_"
    )


def test_prompts_without_noun_phrases_are_refused(job, refused):
    assert refused(["train", "job.toml", "--rewards.blip_vqa", "1"]) == (
        "the reward 'blip_vqa' is told by the column phrases what a prompt asks for, but "
        "prompts.metadata_columns is []; add phrases"
    )


def test_a_judges_model_that_is_not_served_is_refused_with_those_that_are(job, refused, local):
    with judging() as server:
        reward = f"{{url='{server.url}',model='tiny/juge'}}"
        told = refused(["train", "job.toml", "--rewards.judge", reward])
    assert told.startswith(f"reward 'judge' failed: {server.url}/chat/completions answered 404: ")
    assert "; it serves 'tiny/judge', not 'tiny/juge': correct the reward's model; it was" in told


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(:", "importing 'mine_0:f' raised SyntaxError"),
        ("1 / 0", "importing 'mine_1:f' raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_reward_module_that_breaks_is_refused(job, refused, code, message):
    name = message.split("'")[1]
    (job / f"{name[:-2]}.py").write_text(code)
    assert message in refused(["train", "job.toml", f"--rewards.{name}", "1"])


def test_a_reward_of_ones_own_is_taken(job, local):
    (job / "my_reward.py").write_text("def bright(images, prompts): return images.mean((1, 2, 3))")
    (job / "evaluation.txt").write_text("a purple cow\n")  # fine without the reward `shapes`
    assert run(["train", "job.toml", "--rewards", '{"my_reward:bright" = 1}']) == 0
    assert local.calls[0].reward_weights == {"my_reward:bright": 1.0}


def test_cuda_is_refused_where_there_is_none(local, refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refused(["train", "job.toml", "--model.device", "cuda:1"])
    assert (
        message == "model.device is 'cuda:1', but torch sees no CUDA device here; use auto or cpu"
    )
    elsewhere = ["--cluster.scheduler-address", "ucx://10.0.0.1:8786"]
    assert run(["train", "job.toml", "--model.device", "cuda", *elsewhere]) == 0


UTILIZATION = {
    "no blocks": ("--blocks 0", "--blocks is 0.0 and --rounds 7; use blocks above 0 and up to 1"),
    "more blocks than there are": ("--blocks 1.5", "--blocks is 1.5 and --rounds 7; use blocks"),
    "blocks that are no number": ("--blocks nan", "--blocks is nan and --rounds 7; use blocks"),
    "no rounds": ("--rounds 0", "--blocks is 1.0 and --rounds 0; use blocks"),
    "no peak": ("--peak-tflops 0", "--peak-tflops is 0.0; use a number above 0"),
    "a peak that is no number": ("--peak-tflops nan", "--peak-tflops is nan; use a number above"),
    "unknown model": (
        "--model.path a/b",
        "model.path a/b is no folder here, and the settings that",
    ),
    "unknown device": ("--model.device gpu", "model.device 'gpu' is none; use auto, cpu or cuda"),
    "device of no numbers": (
        "--model.device meta",
        "model.device is 'meta', but torch sees no such devices here; use auto, cpu or cuda",
    ),
    "device that is elsewhere": (
        "--model.device cuda --cluster.scheduler-address tcp://10.0.0.1:8786",
        "model.device is 'cuda', but torch sees no CUDA device here; use auto or cpu",
    ),
    "folder of no settings": (
        "--model.path .",
        "model.path .: [Errno 2] No such file or directory",
    ),
    "settings without blocks": (
        "--blocks 0.5",
        "model.path model: transformer/config.json has no num_layers, of which --blocks is a share",
    ),
}


@pytest.mark.parametrize("case", UTILIZATION)
def test_a_share_of_a_peak_of_nothing_is_refused(case, refused, monkeypatch):
    settings, message = UTILIZATION[case]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert message in refused(["bench", "utilization", "job.toml", *settings.split()])


def test_a_device_that_is_one_too_many_is_refused(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    message = refused(["train", "job.toml", "--model.device", "cuda:2"])
    assert message.startswith("model.device is 'cuda:2', but torch sees 2 such devices here; use")
    message = refused(["train", "job.toml", "--model.device", "cuda:1"])
    assert message.startswith(
        "model.device is 'cuda:1', but each worker that a run starts sees one"
    )


def test_folders_that_are_not_writable_are_refused(refused, monkeypatch):
    message = refused(["train", "job.toml", "--tracking.runs-dir", "/proc/new/runs"])
    assert message.startswith("tracking.runs_dir is /proc/new/runs, but /proc is not writable: ")
    message = refused(["make-tiny", "flux", "/proc/new"])
    assert message.startswith("the folder is /proc/new, but /proc is not writable: ")
    message = refused(["make-tiny", "flux", "job.toml/new"])
    assert message == "the folder is job.toml/new, but job.toml is a file"


def test_a_run_whose_folder_is_not_writable_is_not_resumed(job, refused, monkeypatch):
    folder = job / "runs" / "run-1"
    folder.mkdir(parents=True)
    config = load_config("job.toml")
    (folder / "config.json").write_text(config.model_dump_json())
    monkeypatch.setattr(network, "TemporaryDirectory", partial(read_only, Path("runs/run-1")))
    found = refused(["train", "--resume", "runs/run-1"])
    assert found == (
        "the run's folder is runs/run-1, but runs/run-1 is not writable: Read-only file system"
    )


def read_only(folder, dir):
    if dir == folder:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    return nullcontext()


@pytest.fixture
def free_port():
    """A port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("more", [[], ["--leave"]], ids=["starts", "leaves"])
def test_a_worker_is_told_that_a_page_is_no_scheduler(more, refused):
    """As that of its dashboard, which is printed beside it."""
    message = refused(["worker", "http://127.0.0.1:8787", "--name", "a", *more])
    assert message == (
        "the scheduler's address is http://127.0.0.1:8787, but Dask knows no http://; use tcp:// "
        "or tls://"
    )


def test_servers_that_do_not_answer_are_refused(refused, free_port, monkeypatch):
    scheduler = ["train", "job.toml", "--cluster.scheduler-address"]
    address = f"tcp://127.0.0.1:{free_port}"
    key = "cluster.scheduler_address is"
    assert refused([*scheduler, address]).startswith(
        f"{key} {address}, but nothing answers there ("
    )
    for odd in ("nonsense", "tcp://host", "tcp://host:x", "tcp://"):
        assert refused([*scheduler, odd]).startswith(f"{key} {odd!r}; use an address such as tcp:")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", f"127.0.0.1:{free_port}")
    message = refused(["train", "job.toml"])
    assert message.startswith(f"DASK_SCHEDULER_ADDRESS is 127.0.0.1:{free_port}, but nothing")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS")

    url = f"http://127.0.0.1:{free_port}"
    message = refused(["train", "job.toml", "--tracking.mlflow-uri", url])
    assert message.startswith(f"tracking.mlflow_uri is {url}, but no server answers there (")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    assert refused(["train", "job.toml"]).startswith(f"MLFLOW_TRACKING_URI is {url}, but no server")


def test_a_server_that_listens_but_does_not_answer_is_refused(refused, monkeypatch):
    monkeypatch.setattr("digen_core.preflight.network.ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        message = refused(["train", "job.toml", "--tracking.mlflow-uri", url])
    assert message.startswith(
        f"tracking.mlflow_uri is {url}; the server there takes connections, but has not answered"
    )


def test_a_server_behind_a_proxy_is_left_to_those_who_use_it(job, local, free_port, monkeypatch):
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    url = f"http://mlflow.invalid:{free_port}"
    assert run(["train", "job.toml", "--tracking.mlflow-uri", url]) == 0


SECRETS = {
    "a password": ("http://user:s3cret@127.0.0.1:9/x", "http://***@127.0.0.1:9/x, with"),
    "a token for a user": ("https://s3cret@h.example", "https://***@h.example, with a"),
    "a parameter": (
        "http://h.example/x?a=1&api_key=s3cret",
        "?a=1&api_key=***, with the parameter",
    ),
    "a signature": (
        "https://h.example/?X-Amz-Signature=s3cret",
        "Signature=***, with the parameter",
    ),
}


@pytest.mark.parametrize("case", SECRETS)
def test_addresses_with_secrets_are_refused_and_not_shown(case, refused, monkeypatch):
    address, shown = SECRETS[case]
    reward = f"{{type='remote',url='{address}'}}"
    messages = [
        refused(["train", "job.toml", "--rewards.q", reward]),
        refused(["train", "job.toml", "--tracking.mlflow-uri", address]),
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    messages.append(refused(["train", "job.toml"]))
    messages.append(refused(["compare", "runs/a", "runs/b"]))
    assert all("s3cret" not in message and shown in message for message in messages)
    assert "and name the environment variable that holds a token: token_variable" in messages[0]
    assert all(
        "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in m for m in messages[1:]
    )


def test_values_that_are_wrong_are_shown_without_their_secrets(refused):
    message = refused(["train", "job.toml", "--rewards.q", "{type='remote',url='x://u:s3cret@h'}"])
    assert "x://***@h" in message
    message = refused(["train", "job.toml", "--rewards.q.type", "http://u:s3cret@h"])
    assert "s3cret" not in message


@pytest.mark.parametrize("name", ["a b", "../a", "-a", "a\n", "", "<b>", "a" * 64])
def test_a_worker_has_a_name_that_files_can_have(name, refused):
    arguments = ["worker", "tcp://127.0.0.1:1", f"--name={name}"]
    assert f"--name is {name!r}; use at most 63 letters" in refused(arguments)


SPARES = {
    "a role": (
        "--spare-for room --role both",
        "whose role and site are its leader's; leave out --rol",
    ),
    "a pool": ("--spare-for room --pool judges", "leave out --pool"),
    "a gang": ("--spare-for room --members 2", "leave out --members"),
    "ranks": ("--spare-for room --ranks 1", "leave out --ranks"),
    "a site": ("--spare-for room --site fra1", "leave out --site"),
    "a leader": ("--spare-for room.0", "the first of a gang: it leads"),
    "no name": ("--spare-for room/1", "--spare-for is 'room/1'; use at most 63 letters, digits"),
    "its own gang": (
        "--spare-for b9",
        "--name is b9, which is the name of a member of b9, for which",
    ),
    "its own place": ("--spare-for b9.1", "--name is b9, which is the name of a member of b9, for"),
}


@pytest.mark.parametrize("case", SPARES)
def test_a_spare_is_nothing_else(case, refused):
    words, expected = SPARES[case]
    assert expected in refused(["worker", "tcp://127.0.0.1:1", "--name", "b9", *words.split()])


@pytest.mark.parametrize("name", ["room-0", "room-0.1", "room-0.2"])
def test_a_spare_is_not_called_as_a_member(name, refused):
    arguments = ["worker", "tcp://127.0.0.1:1", "--name", name, "--spare-for", "a", "room-0.2"]
    assert f"--name is {name}, which is the name of a member of room-0, for" in refused(arguments)


def test_a_scheduler_that_listens_is_taken(job, local):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert run(["train", "job.toml", "--cluster.scheduler-address", address]) == 0
