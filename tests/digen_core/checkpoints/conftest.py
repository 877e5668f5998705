"""What is seen of a checkpoint is the same without waiting for the disk."""

import os

import pytest


@pytest.fixture(scope="package", autouse=True)
def without_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
