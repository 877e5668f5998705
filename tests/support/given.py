"""Prompts that come with samples, and what these are worth."""

import base64
import json
from pathlib import Path
from typing import Any

from support.edits import picture
from support.runs import PROMPTS

NUM_SAMPLES = 4
COLUMNS = [f"jpg_{place}" for place in range(NUM_SAMPLES)]
LABELS = [f"label_{place}" for place in range(NUM_SAMPLES)]


def rows_with_samples(folder: Path) -> list[dict[str, Any]]:
    """Write images of four samples a prompt, some into their rows, and return the rows."""
    rows = []
    for number, text in enumerate(PROMPTS):
        row: dict[str, Any] = {"prompt": text}
        for place, (column, label) in enumerate(zip(COLUMNS, LABELS, strict=True)):
            content = picture(10 * number + place, 40, 36)
            row[column] = "data:image/png;base64," + base64.b64encode(content).decode()
            if place % 2:
                row[column] = f"{number}-{place}.png"
                (folder / row[column]).write_bytes(content)
            row[label] = (place + number) % 3 / 2
        rows.append(row)
    return rows


def write_samples(folder: Path) -> dict[str, Any]:
    """Write a file of prompts with samples; return the changes of a config that trains on them."""
    rows = rows_with_samples(folder)
    (folder / "given.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "prompts.train": str(folder / "given.jsonl"),
        "prompts.sample_columns": COLUMNS,
        "rewards": {
            "preferred": {"type": "given", "columns": LABELS},
            "smooth_rewards:brightness": 0.0,
        },
        "rollout.group_size": NUM_SAMPLES,
    }
