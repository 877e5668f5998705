"""Models on a hub: their names, whether they can be had, and why not."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from digen_core.errors import ConfigError

_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_UNREACHED: Final = {
    *("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError"),
    *("ConnectError", "TimeoutException"),  # httpx'
}
# Causes get lost when an error is pickled or is raised anew, so words count as well.
_WORDS_OF_UNREACHED: Final = ("not fully cached locally", "couldn't connect to")


def is_hub_id(path: str) -> bool:
    """Say whether a text looks like org/name, and not like a path."""
    return _HUB_ID.fullmatch(path) is not None and not path.startswith(".")


def check_source(
    label: str,
    path: str,
    files: Sequence[str],
    revision: str | None,
    *,
    here: bool,
    what: str = "a folder",
) -> None:
    """Check that what is not on this machine can be had from the hub.

    Args:
        label: the key and its value, for the error.
        path: that is nothing here.
        files: of which such a model has one.
        revision: of the model; None is its default branch.
        here: it is loaded here; elsewhere the cache may have what this machine has not.
        what: it might have been.

    Raises:
        ConfigError: it is no hub id, or cannot be had.
    """
    if not is_hub_id(path):
        raise ConfigError(
            f"{label} is neither {what} (seen from {Path.cwd()}) nor a hub id such as org/name; "
            "correct it"
        )
    if here:
        check_available(label, path, files, revision)


def check_available(label: str, repo: str, files: Sequence[str], revision: str | None) -> None:
    """Check that a model is in the hub's cache or on the hub, and open to this user.

    What is no answer, such as a hub that is busy, is left to the loading, which tries again.

    Args:
        label: the key and its value, for the error.
        repo: hub id.
        files: of which the model has one; the hub is asked for the first.
        revision: of the model; None is its default branch.

    Raises:
        ConfigError: it cannot be had.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    try:
        found = [try_to_load_from_cache(repo, file, revision=revision) for file in files]
        if not any(isinstance(path, str) for path in found):
            get_hf_file_metadata(hf_hub_url(repo, files[0], revision=revision))
    except Exception as error:  # of the hub, of HTTP, or of the network
        reason = hub_failure(label, revision, error)
        if reason is not None:
            raise ConfigError(reason) from error


def hub_failure(label: str, revision: str | None, error: BaseException) -> str | None:
    """Say in one line why a model cannot be had and what to do; None if the hub has no part in it.

    Args:
        label: the key and its value.
        revision: that was asked for.
        error: what the hub's client, or from_pretrained, raised.
    """
    kinds = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    if "HFValidationError" in kinds:
        return f"{label} is neither a folder nor a hub id such as org/name"
    if "GatedRepoError" in kinds:
        return f"{label} is gated: accept its licence on the hub and log in with 'hf auth login'"
    if "RevisionNotFoundError" in kinds:
        return f"{label} has no revision {revision!r}; correct the revision"
    if "RepositoryNotFoundError" in kinds:
        return f"{label} is no folder here and no model on the hub; correct it"
    if kinds & _UNREACHED or any(words in str(error).lower() for words in _WORDS_OF_UNREACHED):
        return (
            f"{label} is no folder here, not in the hub's cache, and the hub cannot be reached; "
            "download the model first, or correct the path"
        )
    return None


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error and those it came from."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain
