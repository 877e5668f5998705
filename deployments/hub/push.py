"""The Hugging Face hub: a folder is pushed there, as the user whose token its client has."""

import shlex
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted

REFUSED = {
    401: "it does not know the token; log in again with 'hf auth login'",
    403: "the token may not write there; take one that may, or another name",
    404: "it has no such organisation, or hides it from this token",
}


def require_token() -> None:
    """Check that the hub's client has a token.

    Raises:
        UserError: it has none.
    """
    if not get_token():
        raise UserError(
            "--push needs a token of the Hugging Face hub: log in with 'hf auth login', or set "
            "HF_TOKEN"
        )


def push_folder(folder: Path, repo: str) -> str:
    """Push a folder to a repository of models, and return its address; a new one is private.

    Raises:
        UserError: the hub cannot be reached, or refuses.
    """
    api = HfApi()
    try:
        address = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Push with digen")
    except OfflineModeIsEnabled as error:
        raise _failed(folder, repo, "HF_HUB_OFFLINE forbids it") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise _failed(folder, repo, REFUSED.get(status, f"it answered {status}")) from error
    except Exception as error:  # of the network, as the hub's client lets it through
        why = f"{redacted(constants.ENDPOINT)} could not be used ({type(error).__name__})"
        raise _failed(folder, repo, why) from error
    return str(address)


def _failed(folder: Path, repo: str, why: str) -> UserError:
    return UserError(
        f"could not push to {repo} on the hub: {why}; the folder is written, push it with: hf "
        f"upload {repo} {shlex.quote(str(folder))}"
    )
