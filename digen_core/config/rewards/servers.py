"""Rewards that a server tells over HTTP."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from digen_core.config.rewards.base import ChoosesInput, Decoded, Sees
from digen_core.inputs.addresses import public_address
from digen_core.strict import Duration


def _public(url: object) -> object:
    if not isinstance(url, str):
        return url
    instead = "name the environment variable that holds a token: token_variable"
    return public_address("the url of a reward", url, instead)


PublicUrl = Annotated[str, BeforeValidator(_public)]
"""An address without a password or a token, which logs and pages would show."""


class ServerReward(ChoosesInput):
    """A reward that asks a server over HTTP."""

    takes: Decoded = "images"
    """images: [B, 3, H, W], of a video every frame_stride-th frame; videos: [B, F, 3, H, W]."""

    url: PublicUrl = Field(
        pattern=r"^https?://\S+$",
        # By this Prefect's server refuses a form with a password before it keeps it.
        json_schema_extra={"pattern": r"^https?://[^\s/?#@]+([/?#]\S*)?$"},
    )
    """Where batches are posted to; a token goes into `token_variable`, not in here."""

    timeout: Duration = Field(60.0, gt=0)
    """Seconds for a request, from its start to the end of its answer; then it has failed."""

    max_attempts: int = Field(4, ge=1, le=100)
    """Calls before the reward counts as failed."""

    token_variable: str | None = None
    """Environment variable of the workers whose value is sent as a bearer token; null: none is."""


class RemoteConfig(ServerReward):
    """A scorer that answers over HTTP; docs/rewards.md has its protocol."""

    type: Literal["remote"] = "remote"

    sees: Sees = "samples"
    """samples: each for itself; groups: all samples of a prompt in one request, so that the scores
    say how they compare."""

    body: Literal["arrow", "json"] = "arrow"
    """arrow: an IPC stream of uint8 tensors; json: PNG files in base64."""

    batch_size: int = Field(32, ge=1)
    """Most samples in one request; where the reward sees groups, it has to be a whole one."""
