"""The config table ``prompts``: which prompts a run has, for training and for evaluation.

Importing this module must not import torch.
"""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from digen_core.inputs.shipped import MaybeShipped
from digen_core.strict import Strict

_SHAPES_TRAIN: Final = "digen:prompts/shapes_train.txt"
_SHAPES_EVALUATION: Final = "digen:prompts/shapes_evaluation.txt"


class PromptsConfig(Strict):
    """Where prompts come from, as docs/prompts.md says in full.

    Files: text (a prompt a line; empty lines are skipped), JSON, tables or Parquet; or folders of a
    Hugging Face dataset or of a published prompt set.
    """

    train: MaybeShipped = Field(_SHAPES_TRAIN, min_length=1)
    """Prompts that are trained on: a file, a folder, or a pattern such as data/train-*.parquet.
    digen:prompts/NAME is a file that digen ships."""

    evaluation: Annotated[MaybeShipped, Field(min_length=1)] | None = None
    """Prompts kept for evaluation only, likewise; null: rows of `train`, as split_column or
    evaluation_fraction says. Prompts of your own need one of the three; those of the embedded world
    have theirs."""

    column: str = Field("prompt", min_length=1)
    """Column of the prompts."""

    metadata_columns: tuple[str, ...] = ()
    """Columns that rewards get with each prompt, and the run's samples keep."""

    image_column: str | None = None
    """Column of source images, which the model is shown with the prompts and rewards may look at:
    samples are edits of them, or videos that begin with them. A path, seen from the folder of the
    prompts, or the content of a JPEG, PNG or WebP file, or a list of them
    (model.max_source_images); null: prompts are texts only."""

    sample_columns: tuple[str, ...] = ()
    """Columns of `train` that hold the samples that are trained on, an image of each in a row, as
    of image_column: none is generated. As many as rollout.group_size; empty: all are generated."""

    empty_fraction: float = Field(0.0, ge=0, lt=1)
    """Share of the rows with samples that are trained on without their prompt, an empty text in its
    place, drawn anew each time a row is; published for Diffusion-DPO: 0.2."""

    negative_column: str | None = None
    """Column of what classifier-free guidance steers away from, of each prompt by itself; null, or
    a row without one: model.negative_prompt."""

    weight_column: str | None = None
    """Column of `train` that says how often a prompt is drawn, relative to the others; null: all
    equally often."""

    steps_column: str | None = None
    """Column of `train` that says in how many steps a prompt's samples are denoised, from 2 to
    rollout.num_steps; null, or a row without one: rollout.num_steps."""

    split_column: str | None = None
    """Column of `train` that says what a row is for; null: all rows are trained on."""

    train_split: str = "train"
    """Value in split_column of the rows that are trained on."""

    evaluation_split: str = "evaluation"
    """Value in split_column of the rows for evaluation; rows with other values are left out."""

    evaluation_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of the prompts of `train` that is kept for evaluation, drawn from the run's seed."""

    @property
    def are_texts(self) -> bool:
        """Whether a model is given nothing of a prompt but its text."""
        return self.image_column is None is self.negative_column

    @model_validator(mode="before")
    @classmethod
    def _with_evaluation(cls, values: object) -> object:
        """Add the evaluation prompts of the embedded world to its train prompts, if none are."""
        splits = ("split_column", "evaluation_fraction")
        if not isinstance(values, dict) or any(values.get(key) is not None for key in splits):
            return values
        if values.get("train", _SHAPES_TRAIN) != _SHAPES_TRAIN:
            return values
        return {"evaluation": _SHAPES_EVALUATION, **values}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.steps_column is not None and self.sample_columns:
            raise ValueError(
                f"prompts.steps_column is {self.steps_column!r}, but samples come from files "
                "(prompts.sample_columns), so that none is denoised; leave one of them out."
            )
        if self.split_column is not None and self.evaluation_fraction is not None:
            raise ValueError(
                f"prompts.split_column is {self.split_column!r} and prompts.evaluation_fraction "
                f"{self.evaluation_fraction}; use one of them."
            )
        if self.evaluation is None and self.split_column is None is self.evaluation_fraction:
            raise ValueError(
                f"prompts.train is {self.train}, but nothing says which prompts are for "
                "evaluation; set prompts.evaluation to a file of others, or "
                "prompts.evaluation_fraction to 0.1 to hold out a tenth, or prompts.split_column."
            )
        return self
