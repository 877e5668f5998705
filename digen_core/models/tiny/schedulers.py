"""Schedulers of tiny models, with the settings of published ones."""

from diffusers import FlowMatchEulerDiscreteScheduler


def qwen_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Return that of the Qwen-Images, whose shift goes by an image's size."""
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
    )
