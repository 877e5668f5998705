"""Stages: what blocks take, and where they are put."""
