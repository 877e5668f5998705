"""What a run writes down of its environment."""

import importlib_metadata  # noqa: F401 - as MLflow does: from then on it finds packages for Python

from tasks.tracking.environment import _packages


def test_what_pip_left_of_a_package_is_none(tmp_path, monkeypatch):
    (tmp_path / "~rch-1.0.dist-info").mkdir()
    whole = tmp_path / "whole-1.0.dist-info"
    whole.mkdir()
    (whole / "METADATA").write_text("Name: whole\nVersion: 1.0\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert _packages.__wrapped__() == ["whole==1.0"]
