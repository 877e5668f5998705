"""The pages of a run and of its iterations, as Markdown.

They are tables, and pictures inside the text, such as the reward curve. Prefect's pages draw
embedded pictures; where they are not drawn (``prefect artifact inspect``), a sparkline is.
"""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from digen_core.config.rewards import relative
from digen_core.inputs.addresses import redacted
from digen_core.inputs.text import number_of, short
from digen_core.records import EvaluationReport, IterationRecord, Picture
from tasks.views.display import (
    Progress,
    busy_fractions,
    change_between,
    change_text,
    duration,
    headlines,
    idle_causes,
    is_component,
    label_of,
    line_chart,
    mean_text,
    sparkline,
    value_text,
    verdict,
    wins_cells,
)
from tasks.views.markdown import cell, code, escaped, inline

SHOWN: Final = 5
"""Warnings on a run's page: the last ones."""


def describe(progress: Progress) -> str:
    """Return how far a run is, in one line."""
    total, left = progress.config.num_iterations, progress.seconds_left
    phase = progress.phase
    if progress.steps:
        phase += f" ({progress.num_steps} of {progress.steps})"
    parts = [f"{progress.num_finished} of {number_of(total, 'iteration')}", phase]
    parts.append(f"{duration(progress.elapsed_seconds)} elapsed")
    if left is not None and progress.num_finished < total:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def report_of(run_id: str, progress: Progress, links: Mapping[str, str]) -> str:
    """Return a run's report as Markdown."""
    parts = [f"# {escaped(run_id)}", escaped(describe(progress))]
    if progress.warnings:
        lines = [f"- **Warning:** {inline(text)}" for text in progress.warnings[-SHOWN:]]
        parts.append("\n".join(lines))
    found = progress.values.get("reward/mean", {})
    rewards = {index + 1: value for index, value in found.items() if math.isfinite(value)}
    if rewards:
        svg = line_chart(
            "mean reward of each iteration", [*rewards.values()], min(rewards), max(rewards)
        )
        parts.append(_embedded("mean reward", "svg+xml", svg.encode()))
    if progress.last and (rewards or relative(progress.config.rewards)):
        parts.append(_metrics_table(progress))
    if progress.evaluations:
        parts.append(_evaluation_table(progress.evaluations))
    links_list = [f"- {label}: {_link(target)}" for label, target in links.items()]
    return "\n\n".join([*parts, *(["\n".join(links_list)] if links_list else [])]) + "\n"


def iteration_report(record: IterationRecord, timeline: bytes) -> str:
    """Return an iteration's page as Markdown.

    Args:
        record: of the iteration.
        timeline: its picture as PNG, or nothing.
    """
    parts = [f"# iteration {record.iteration + 1}: {short(record.seconds)} s"]
    if names := headlines(record.metrics):
        rows = [f"| {_label(n)} | {value_text(n, record.metrics)} |" for n in names]
        parts.append("\n".join(["| metric | value |", "|---|---:|", *rows]))
    if timeline:
        parts.append(_embedded("what the devices did", "png", timeline))
    if record.idle:
        parts.append(_idle_table(record))
    if record.pictures:
        parts.append(_samples_table(record.pictures))
    return "\n\n".join(parts) + "\n"


def _samples_table(pictures: Sequence[Picture]) -> str:
    """Return a row for each prompt: what is edited, if it is, and samples with their rewards."""
    rows = []
    for _, group in groupby(pictures, key=lambda picture: picture.group):
        first, *_ = shown = list(group)
        about = cell(first.prompt)
        for source in first.sources:
            about += f" {_embedded('source image', 'jpeg', source)}"
        made = (f"{_embedded(p.prompt, 'jpeg', p.jpeg)} {p.reward:.3f}" for p in shown)
        rows.append([about, *made])
    num_columns = max(map(len, rows))
    heads = ["prompt", *[""] * (num_columns - 1)]
    lines = [
        "samples and their rewards:",
        "",
        f"| {' | '.join(heads)} |",
        "|---" * num_columns + "|",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _label(name: str) -> str:
    """Return what a metric is called, for a table; components have the names that rewards gave."""
    return cell(label_of(name)) if is_component(name) else label_of(name)


def _embedded(alt: str, kind: str, picture: bytes) -> str:
    """Return a picture inside the text."""
    alt = re.sub(r"[^\w ,.]", "", " ".join(alt.split()))
    return f"![{alt}](data:image/{kind};base64,{base64.b64encode(picture).decode()})"


def _idle_table(record: IterationRecord) -> str:
    """Return the share of busy time and of each cause that occurs, of all devices and of each."""
    idle = {"all devices": idle_causes(record.metrics), **record.idle}
    causes = [cause for cause, share in idle["all devices"].items() if share > 0]
    lines = [f"| | busy | {' | '.join(causes)} |", "|---" + "|---:" * (len(causes) + 1) + "|"]
    for name, shares in idle.items():
        values = [1 - sum(shares.values()), *(shares[cause] for cause in causes)]
        label = cell(name) if name in record.idle else name
        lines.append(f"| {label} | {' | '.join(f'{value:.0%}' for value in values)} |")
    return "\n".join(lines)


def _metrics_table(progress: Progress) -> str:
    """Return a row for each metric; of means with ±, their standard errors over the prompts."""
    first, last = progress.first, progress.last
    lines = ["| metric | first | last | change | trend |", "|---|---:|---:|---|---|"]
    for name in headlines(last):
        before = value_text(name, first) if name in first else ""
        trend = sparkline(progress.trend(name), 32)
        cells = [before, value_text(name, last), verdict(change_between(name, first, last)), trend]
        lines.append(f"| {_label(name)} | {' | '.join(cells)} |")
    lines += [
        f"| busy: {cell(device)} | | {share:.0%} | | |"
        for device, share in busy_fractions(last).items()
    ]
    return "\n".join(lines)


def _evaluation_table(evaluations: Mapping[str, EvaluationReport]) -> str:
    """Return a row for each component; of several evaluations, how the last differs from the first.

    ± is the standard error over the prompts.
    """
    tags = list(evaluations)
    first, last = evaluations[tags[0]], evaluations[tags[-1]]
    heads = [f"{cell(tag)} (version {evaluations[tag].version})" for tag in tags]
    wins = ["wins"] if last.wins else []
    heads += ["change", *wins, ""] if len(tags) > 1 else []
    lines = [f"| evaluation | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
    names = list(dict.fromkeys(name for tag in tags for name in evaluations[tag].rewards))
    for name in names:
        reports = [evaluations[tag] for tag in tags]
        texts = [mean_text(report, name) if name in report.rewards else "" for report in reports]
        if len(tags) > 1:
            change = last.change_since(first, name)
            texts += [change_text(change), *wins_cells(last, name), verdict(change)]
        lines.append(f"| {cell(name)} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _link(target: str) -> str:
    """Return an address that can be clicked, or a command."""
    is_address = re.fullmatch(r"https?://[^\s<>]+", target) is not None
    return f"<{redacted(target)}>" if is_address else code(target)
