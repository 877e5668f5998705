import json
from dataclasses import fields, replace

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from digen_core.records import SampleRow
from digen_core.transport.samples import SCHEMA, read_samples, write_samples

ROW = SampleRow(
    iteration=0,
    group=1,
    sample=2,
    prompt="a red circle left of a blue square",
    seed=7,
    policy_version=0,
    worker="rollout-0",
    reward=0.75,
    rewards={"shapes/score": 0.75, "shapes/exact": 0.0},
    advantage=-1.25,
    trained=True,
    steps=[0, 1, 2],
    behaviour_logprobs=[-0.5, 0.25, 1 / 3],
    denoise_seconds=0.5,
    score_seconds=0.01,
    metadata={"spec": {"class": "dog", "count": 2}, "tag": None},
)


def rows_of(iteration: int, count: int = 4) -> list[SampleRow]:
    return [replace(ROW, iteration=iteration, sample=sample) for sample in range(count)]


def test_a_row_comes_back_as_it_was(tmp_path):
    write_samples(tmp_path, 0, [ROW])
    (row,) = read_samples(tmp_path).to_pylist()
    row["metadata"] = json.loads(row["metadata"])
    rewards = {name: row.pop(name) for name in ("shapes/exact", "shapes/score")}
    assert SampleRow(**row, rewards=rewards) == ROW


def test_the_schema_is_pinned(tmp_path):
    path = write_samples(tmp_path, 3, rows_of(3))
    rewards = [
        pa.field("shapes/exact", pa.float64(), nullable=False),
        pa.field("shapes/score", pa.float64(), nullable=False),
    ]
    assert pq.read_schema(path) == pa.schema([*SCHEMA, *rewards])
    assert {*SCHEMA.names, "rewards"} == {field.name for field in fields(SampleRow)}


def test_no_column_depends_on_its_values(tmp_path):
    untrained = replace(ROW, steps=[], behaviour_logprobs=[], trained=False)
    path = write_samples(tmp_path, 0, [untrained])
    assert pq.read_schema(path).field("behaviour_logprobs").type == pa.list_(pa.float64())


def test_iterations_read_as_one_data_set(tmp_path):
    write_samples(tmp_path, 10, rows_of(10))
    write_samples(tmp_path, 9, rows_of(9, count=2))
    expected = [9, 9, 10, 10, 10, 10]
    assert read_samples(tmp_path)["iteration"].to_pylist() == expected
    assert ds.dataset(tmp_path).to_table()["iteration"].to_pylist() == expected
    frame = pd.read_parquet(tmp_path)
    assert list(frame.groupby("iteration")["shapes/score"].mean()) == [0.75, 0.75]


def test_an_iteration_that_is_written_again_replaces_itself(tmp_path):
    write_samples(tmp_path, 0, rows_of(0))
    write_samples(tmp_path, 0, rows_of(0, count=1))
    assert read_samples(tmp_path).num_rows == 1


def test_a_failed_write_leaves_the_data_set_as_it_was(tmp_path, monkeypatch):
    write_samples(tmp_path, 0, rows_of(0))
    before = sorted(tmp_path.iterdir())

    def fill_the_disk(table, path, **_options):
        path.write_bytes(b"PAR1")
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", fill_the_disk)
    with pytest.raises(OSError, match="no space left"):
        write_samples(tmp_path, 1, rows_of(1))
    assert sorted(tmp_path.iterdir()) == before
    assert read_samples(tmp_path).num_rows == 4


def test_a_file_that_is_being_written_is_not_read(tmp_path):
    path = write_samples(tmp_path, 0, rows_of(0))
    (tmp_path / f".{path.name}.123").write_bytes(b"PAR1")
    assert read_samples(tmp_path).num_rows == 4
    assert ds.dataset(tmp_path).count_rows() == 4


def test_rows_of_another_iteration_are_refused(tmp_path):
    with pytest.raises(ValueError, match="of iteration 1, not 0"):
        write_samples(tmp_path, 0, rows_of(1))


def test_rows_with_other_rewards_are_refused(tmp_path):
    odd = replace(ROW, rewards={"shapes/score": 1.0})
    with pytest.raises(ValueError, match="has the rewards"):
        write_samples(tmp_path, 0, [ROW, odd])


def test_an_empty_iteration_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no samples"):
        write_samples(tmp_path, 0, [])


def test_runs_do_not_mix(tmp_path):
    write_samples(tmp_path, 0, rows_of(0))
    write_samples(tmp_path, 1, [replace(ROW, iteration=1, rewards={"other/score": 1.0})])
    with pytest.raises(ValueError, match="one data set holds one run"):
        read_samples(tmp_path)


def test_an_empty_folder_holds_no_samples(tmp_path):
    with pytest.raises(FileNotFoundError, match="no samples"):
        read_samples(tmp_path)
