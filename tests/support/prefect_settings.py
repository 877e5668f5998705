"""Settings of Prefect as those of a user who has, or has not, named a server."""

from prefect.settings import Settings, get_current_settings


def settings_with_server(url: str | None) -> Settings:
    """Return the present settings with this server, or with none."""
    settings = get_current_settings()
    api = settings.api.model_copy(update={"url": url})
    return settings.model_copy(update={"api": api})
