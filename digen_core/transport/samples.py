"""The run's data set of samples: one Parquet file per iteration, one row per sample.

Any reader takes the folder as one table:
    pyarrow   read_samples(folder), or pyarrow.dataset.dataset(folder)
    pandas    pandas.read_parquet(folder)
    DuckDB    select * from 'samples/*.parquet'

Columns are those of ``SCHEMA``, then one float64 column per reward component, named as the metric
is without its first part ("shapes/exact"), in alphabetical order.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from digen_core.records import SampleRow
from digen_core.transport.parquet import read_whole, write_whole

SCHEMA: Final = pa.schema(
    [
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("policy_version", pa.int32(), nullable=False),
        pa.field("worker", pa.string(), nullable=False),
        pa.field("reward", pa.float64(), nullable=False),
        pa.field("advantage", pa.float64(), nullable=False),
        pa.field("trained", pa.bool_(), nullable=False),
        pa.field("steps", pa.list_(pa.int32()), nullable=False),
        pa.field("behaviour_logprobs", pa.list_(pa.float64()), nullable=False),
        pa.field("denoise_seconds", pa.float64(), nullable=False),
        pa.field("score_seconds", pa.float64(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),  # a JSON object
        pa.field("image", pa.string()),  # file, seen from the run's folder; null: not kept
        pa.field("source_images", pa.list_(pa.string())),  # of what it is an edit of
        pa.field("nonfinite", pa.string()),  # what of it is NaN or infinite; null: nothing
        pa.field("candidate", pa.int32()),  # whose noise it has; null: there were none
        pa.field("screened_reward", pa.float64()),  # of that candidate
    ]
)
"""The columns every data set has, whatever is rewarded."""


def write_samples(samples_dir: Path | str, iteration: int, rows: Sequence[SampleRow]) -> Path:
    """Write the samples of one iteration and return the file.

    The file appears whole or not at all; a file of the same iteration is replaced.

    Args:
        samples_dir: folder of the data set; made if it is missing.
        iteration: iteration of all rows.
        rows: samples, in the order they are kept in.

    Raises:
        ValueError: there is no row, or rows differ in their iteration or reward components.
    """
    table = _table(iteration, rows)
    path = file_of(Path(samples_dir), iteration)
    write_whole(table, path)
    return path


def file_of(samples_dir: Path, iteration: int) -> Path:
    """Return the file of an iteration's samples."""
    return samples_dir / f"iteration-{iteration:06d}.parquet"


def read_samples(samples_dir: Path | str) -> pa.Table:
    """Return all samples of a data set, iteration by iteration.

    Raises:
        FileNotFoundError: the folder holds no samples.
        ValueError: a file is damaged, or they differ in their columns, so are of different runs.
    """
    paths = sorted(Path(samples_dir).glob("iteration-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"no samples in {samples_dir}")
    tables = [read_whole(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table.schema != tables[0].schema:
            raise ValueError(
                f"{path} has the columns {table.schema.names}, but {paths[0].name} has "
                f"{tables[0].schema.names}; one data set holds one run."
            )
    return pa.concat_tables(tables)


def _table(iteration: int, rows: Sequence[SampleRow]) -> pa.Table:
    if not rows:
        raise ValueError(f"iteration {iteration} has no samples to write.")
    components = sorted(rows[0].rewards)
    for row in rows:
        if row.iteration != iteration:
            raise ValueError(
                f"sample {row.sample} of group {row.group} is of iteration {row.iteration}, "
                f"not {iteration}."
            )
        if sorted(row.rewards) != components:
            raise ValueError(
                f"sample {row.sample} of group {row.group} has the rewards {sorted(row.rewards)}, "
                f"but the first sample has {components}."
            )
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    columns["metadata"] = [json.dumps(row.metadata) for row in rows]
    schema = SCHEMA
    for component in components:
        columns[component] = [row.rewards[component] for row in rows]
        schema = schema.append(pa.field(component, pa.float64(), nullable=False))
    return pa.table(columns, schema=schema)
