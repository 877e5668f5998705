"""Rewards that break in the ways in which one's own do."""

import torch

calls = []


def one_value(images, prompts):
    return images.mean(dim=(0, 1, 2, 3)).reshape(1)


def per_pixel(images, prompts):
    return images


def no_numbers(images, prompts):
    return ["good"] * len(prompts)


def raises(images, prompts):
    raise KeyError("caption")


def not_a_number(images, prompts):
    return torch.full([len(prompts)], torch.nan)


def wants_a_column(images, prompts, metadata):
    return torch.tensor([row["target"] for row in metadata], dtype=torch.float64)


def contrast_free(images, prompts):
    """Sound, though it divides by what a constant image has none of."""
    return images.mean(dim=(1, 2, 3)) / images.std(dim=(1, 2, 3))


def noted(images, prompts, metadata):
    calls.append((tuple(images.shape), list(prompts), list(metadata)))
    return torch.ones(len(prompts))


class Loaded:
    """What is loaded once is for the workers to try."""

    def __init__(self, device):
        raise AssertionError("loaded in the process that starts the run")

    def __call__(self, images, prompts):
        return torch.ones(len(prompts))


class OneValue:
    def __init__(self, device):
        pass

    def __call__(self, images, prompts):
        return torch.ones(1)
