"""The controller on a virtual clock."""
