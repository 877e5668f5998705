"""How far a run is: what it remembers of versions."""

from flows.runtime.progress import Progress


def test_of_versions_that_are_made_again_nothing_is_known():
    progress = Progress()
    progress.first_version(0, "a")
    for version, made in enumerate("bcd", start=1):
        progress.stepped(version, made, oldest=version, trained_from=version - 1)
    progress.first_version(1, "b")
    assert progress.hashes == {0: "a", 1: "b"}
