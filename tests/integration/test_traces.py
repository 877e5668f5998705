"""The trace that a run leaves: its spans, devices, idle metrics and timelines."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from support.runs import Watch, merged, training_in_mlflow, tree_of

pytestmark = pytest.mark.ci

CHANGES = {
    "num_iterations": 3,
    "model.dtype": "float32",
    "rollout.fragment_size": 2,
    "rollout.steps_per_task": 1,
    "evaluation.samples_per_prompt": 1,
}
NUM_STEPS, NUM_FRAGMENTS, NUM_PAIRS = 3, 4, 16  # 2 groups of 4 samples, 2 trained steps
FRAGMENT_KINDS = ("denoise", "score")


@pytest.fixture(
    scope="module", params=[pytest.param("disaggregated", marks=pytest.mark.layouts), "tcss"]
)
def run(request, tiny_flux, cluster_address, prefect_backend, tmp_path_factory):
    """A small run of two rollout devices and two trainers, and what it left."""
    from digen_core.trace.spans import read_devices, read_spans
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    tree = tree_of(tiny_flux, tmp_path_factory.mktemp("run"))
    changes = {"cluster.scheduler_address": cluster_address(2, 2)}
    changes["schedule.layout"] = request.param
    config = RunConfig.model_validate(merged(tree, CHANGES | changes))
    watch = Watch()
    with watching(watch):
        report = post_train(config)
    folder = Path(report.run_dir)
    return SimpleNamespace(
        layout=request.param,
        config=config,
        folder=folder,
        records=watch.records,
        spans=read_spans(folder / "spans"),
        devices=read_devices(folder / "devices.parquet"),
    )


def test_every_task_has_one_span(run):
    for iteration in range(3):
        own = [span for span in run.spans if span.iteration == iteration]
        assert len({(span.task, span.device) for span in own}) == len(own)
        counts = Counter(span.kind for span in own)
        counts.pop("encode", None)  # a prompt that came before is not encoded again
        num_packs = counts.pop("train")
        (holder,) = {span.device for span in own if span.kind == "step"}
        others = {span.device for span in own if span.kind == "train"} - {holder}
        assert counts == {
            "denoise": NUM_FRAGMENTS * NUM_STEPS,
            "score": NUM_FRAGMENTS,
            "reduce": 1 + len(others),  # and each of them shares its sum
            "step": 1,
            "copy": 1,
            "publish": 1,
            "push": 4,
        }
        packs = [span.num_items for span in own if span.kind == "train"]
        assert (len(packs), sum(packs)) == (num_packs, NUM_PAIRS)


def test_spans_are_those_of_the_records(run):
    assert run.spans == [span for record in run.records for span in record.spans]


def test_spans_say_what_their_task_was(run):
    for span in run.spans:
        assert span.queued < span.started <= span.ended
        assert span.num_bytes >= 0
        assert (span.group >= 0) == (span.kind in FRAGMENT_KINDS)
        assert (span.fragment >= 0) == (span.kind in FRAGMENT_KINDS)
        assert (span.first_step >= 0) == (span.end_step > 0) == (span.kind == "denoise")
        if span.kind in FRAGMENT_KINDS:
            assert span.num_items == 2
        if span.kind == "denoise":
            assert span.end_step == span.first_step + 1
    sent = Counter()
    for span in run.spans:
        sent[span.kind] += span.num_bytes
    # The last latents of all fragments, as float32, went to the trainers at least once.
    assert sent["train"] > NUM_FRAGMENTS * 2 * 4
    assert sent["push"] > 0


def test_versions_are_those_that_were_used(run):
    for span in run.spans:
        k = span.iteration
        if span.kind == "train":
            assert span.version == k
        elif span.kind in ("step", "copy", "publish", "push"):
            assert span.version == k + 1
        elif span.kind == "denoise":
            oldest = max(0, k - 1) if run.layout == "tcss" else k
            assert oldest <= span.version <= k
    generated = {}
    for span in run.spans:
        if span.kind == "denoise":
            generated.setdefault((span.iteration, span.group), set()).add(span.version)
    assert all(len(versions) == 1 for versions in generated.values())  # no group mixes them
    for record in run.records:
        versions = {(record.iteration, row.group): row.policy_version for row in record.samples}
        assert all(generated[group] == {version} for group, version in versions.items())
        stale = max(record.iteration - version for version in versions.values())
        assert record.metrics["staleness/max"] == stale


def test_work_and_gaps_tile_the_window_of_each_device(run):
    from digen_core.trace.gaps import clip, idle_gaps
    from digen_core.trace.kinds import READYING
    from digen_core.trace.windows import Union, Window, iteration_windows

    windows = iteration_windows(run.spans)
    assert list(windows) == [0, 1, 2]
    for iteration, window in windows.items():
        for device in run.devices:
            work = [
                Window(max(s.started, window.started), min(s.ended, window.ended))
                for s in run.spans
                if s.device == device.name and s.kind not in READYING and window.overlaps(s)
            ]
            edges = Union(work).edges(Window(float("-inf"), float("inf")))
            busy = sum(b - a for a, b in zip(edges[::2], edges[1::2], strict=True))
            gaps = clip(idle_gaps(run.spans, [device], window), {iteration: window})[iteration]
            assert busy + sum(gap.seconds for gap in gaps) == pytest.approx(window.seconds)
            # one task at a time
            assert busy == pytest.approx(sum(part.seconds for part in work))


def test_metrics_of_the_run_are_those_of_its_files(run):
    """In the last iteration to the digit: in others, some tasks end after the metrics are told."""
    from digen_core.trace.gaps import idle_gaps
    from digen_core.trace.metrics import idle_shares
    from digen_core.trace.windows import iteration_windows

    windows = iteration_windows(run.spans)
    for record in run.records:
        window = windows[record.iteration]
        shares = idle_shares(idle_gaps(run.spans, run.devices, window), run.devices, window)
        for name, own in shares.items():
            busy = record.metrics[f"device/{name}/busy_fraction"]
            if record is run.records[-1]:
                assert busy == pytest.approx(1 - sum(own.values()))
            assert 0 <= busy <= 1
            assert sum(record.idle[name].values()) == pytest.approx(1 - busy)
        idle = sum(v for name, v in record.metrics.items() if name.startswith("idle/"))
        busy = [record.metrics[f"device/{device.name}/busy_fraction"] for device in run.devices]
        assert idle == pytest.approx(1 - sum(busy) / 4)
        rate = record.metrics["throughput/samples_per_device_second"]
        assert rate == pytest.approx(8 / 4 / window.seconds)


def test_devices_have_their_roles(run):
    assert [(device.name, *device.roles) for device in run.devices] == [
        ("rollout-0", "rollout"), ("rollout-1", "rollout"),
        ("trainer-0", "trainer"), ("trainer-1", "trainer"),
    ]  # fmt: skip


def test_timelines_are_in_mlflow(run):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{run.folder.parent}/mlflow.db")
    found = training_in_mlflow(run.folder.parent)
    paths = [item.path for item in client.list_artifacts(found.info.run_id, "timelines")]
    assert paths == [f"timelines/iteration-{number:04d}.png" for number in (1, 3)]
    assert "idle/orchestration" in found.data.metrics
    has_prediction = (run.folder / "schedule.json").exists()
    assert ("makespan/predicted_error" in found.data.metrics) == has_prediction


def test_iterations_have_a_page_in_prefect(run):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter

    with get_client(sync_client=True) as client:
        own = FlowRunFilter(name={"like_": f"{run.folder.name}-i0"})
        flow_runs = client.read_flow_runs(flow_run_filter=own)
        key = ArtifactFilter(key=ArtifactFilterKey(any_=["digen-iteration"]))
        found = client.read_artifacts(artifact_filter=key, flow_run_filter=own)
        pages = {artifact.flow_run_id: artifact.data for artifact in found}
    shown = {flow_run.name[-4:]: pages[flow_run.id] for flow_run in flow_runs}
    assert set(shown) == {"0001", "0002", "0003"}
    pictures = {number for number, page in shown.items() if "](data:image/png;base64," in page}
    assert pictures == {"0001", "0003"}
    for page in shown.values():
        assert "| all devices |" in page
        assert "| trainer-1 |" in page


def test_the_report_has_every_span_once(run):
    import json

    from deployments.views.report import write_report

    report = write_report(run.folder, run.folder / "report")
    events = json.loads((report.out / "trace.json").read_text())["traceEvents"]
    slices = Counter(event["name"] for event in events if event["ph"] == "X")
    assert sum(slices[span.task] for span in {s.task: s for s in run.spans}.values()) == len(
        run.spans
    )
