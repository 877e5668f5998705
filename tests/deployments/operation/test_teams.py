"""Gangs on several hosts and of several kinds: what starts each team, run with stubs."""

import json
import os
import re
import subprocess
from types import SimpleNamespace

import jsonschema
import pytest
import yaml
from kubernetes.client import ApiClient

from deployments.cli import run
from deployments.operation.launching import files_for
from deployments.operation.workers import workers_of
from deployments.views.plans.fleet import _changed
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import load_cluster
from support.operator_schema import schema_of
from support.started import ARGUMENTS, SRUN, write_program

EQUAL = """
[[devices]]
kind = "card"
count = 8
gang = 4
gang_hosts = 2
cuda = true
threads = 3
[reference]
step = { per_item = 1.0 }
pack = { per_item = 1.0 }
"""

ROOM = """
[slurm.constraints]
large = "rtx4090"
small = "rtx4060ti"
[kubernetes.node_labels]
large = { "nvidia.com/gpu.product" = "RTX-4090" }
[[devices]]
kind = "large"
count = 4
cuda = true
threads = 2
hosts = ["a", "b"]
site = "fra1"
[[devices]]
kind = "small"
count = 5
cuda = true
roles = "both"
hosts = ["c", "d", "e", "f", "g"]
site = "fra1"
[[devices]]
kind = "whole"
count = 1
roles = "rollout"
hosts = ["h"]
site = "fra1"
[[gangs]]
kind = "room"
count = 2
ranks = ["large", "large", "small", "small"]
[reference]
step = { per_item = 1.0 }
pack = { per_item = 1.0 }
"""


def cluster_in(folder, text):
    path = folder / "room.toml"
    path.write_text(text)
    return load_cluster(path)


def test_each_host_has_what_its_cards_are_in_a_gang(tmp_path):
    found = [
        (w.names, w.host, w.gpus, w.group.kind) for w in workers_of(cluster_in(tmp_path, ROOM))
    ]
    assert found == [
        (("whole-0",), "h", (), "whole"),
        (("room-0", "room-0.1"), "a", (0, 1), "large"),
        (("room-0.2",), "c", (0,), "small"),
        (("room-0.3",), "d", (0,), "small"),
        (("room-1", "room-1.1"), "b", (0, 1), "large"),
        (("room-1.2",), "e", (0,), "small"),
        (("room-1.3",), "f", (0,), "small"),
        (("small-spare-0",), "g", (0,), "small"),
    ]


def test_without_hosts_all_teams_are_on_this_machine(tmp_path):
    workers = workers_of(cluster_in(tmp_path, EQUAL), gpus_taken=[1])
    assert [(w.name, w.host, w.gpus) for w in workers] == [
        ("card-0", None, (0, 2)),
        ("card-0.2", None, (3, 4)),
        ("card-1", None, (5, 6)),
        ("card-1.2", None, (7, 8)),
    ]
    assert [w.arguments(True)[-1] for w in workers] == ["0-1", "2-3", "0-1", "2-3"]


@pytest.mark.parametrize("taken", ["room-0", "room-0.3"])
def test_a_gang_is_called_as_no_member_of_another(tmp_path, taken):
    workers = workers_of(cluster_in(tmp_path, ROOM), taken={taken})
    assert [*dict.fromkeys(w.device for w in workers)] == [
        "whole-0", "room-1", "room-2", "small-spare-0",
    ]  # fmt: skip
    assert workers[-1].of.places == ("room-1.2", "room-1.3", "room-2.2", "room-2.3")


def test_a_site_is_that_of_the_card_that_is_asked_for(tmp_path):
    text = """
    [[devices]]
    kind = "card"
    count = 2
    site = "here"
    [[devices]]
    kind = "card"
    count = 2
    site = "there"
    [[gangs]]
    kind = "pair"
    count = 2
    ranks = ["card@there", "card@here"]
    """
    workers = workers_of(cluster_in(tmp_path, text))
    assert [(w.name, w.group.site, w.site) for w in workers] == [
        ("pair-0", "there", "there"),
        ("pair-0.1", "here", "there"),
        ("pair-1", "there", "there"),
        ("pair-1.1", "here", "there"),
    ]
    assert all("there" in worker.arguments(True)[3] for worker in workers)


LEFT = ["spare:room-0.2", "spare:room-0.3", "spare:room-1.2", "spare:room-1.3"]


def spares(tmp_path, text):
    """Return name, host, GPUs and places of the spares of a cluster file."""
    found = [own for own in workers_of(cluster_in(tmp_path, text)) if "spare" in own.name]
    return [(own.name, own.host, own.gpus, own.of.places) for own in found]


def test_devices_that_are_left_over_are_spares_for_followers_of_their_kind(tmp_path):
    four = ("room-0.2", "room-0.3", "room-1.2", "room-1.3")
    assert spares(tmp_path, ROOM) == [("small-spare-0", "g", (0,), four)]
    less = ROOM.replace("\ncount = 2\nranks", "\ncount = 1\nranks")
    assert spares(tmp_path, less) == [
        ("large-spare-0", "b", (0,), ("room-0.1",)),
        ("large-spare-1", "b", (1,), ("room-0.1",)),
        ("small-spare-0", "e", (0,), ("room-0.2", "room-0.3")),
        ("small-spare-1", "f", (0,), ("room-0.2", "room-0.3")),
        ("small-spare-2", "g", (0,), ("room-0.2", "room-0.3")),
    ]
    whole = less.replace('"large", "large"', '"large"')
    assert spares(tmp_path, whole)[0] == ("small-spare-0", "e", (0,), ("room-0",)), (
        "large ones lead"
    )


def test_devices_of_another_site_are_no_spares(tmp_path):
    more = """
    [[devices]]
    kind = "small"
    count = 2
    cuda = true
    site = "iad1"
    [[devices]]
    kind = "small"
    count = 1
    cuda = true
    site = "fra1"
    """
    assert [own[0] for own in spares(tmp_path, ROOM + more)] == ["small-spare-0", "small-spare-1"]
    assert [own[1] for own in spares(tmp_path, ROOM + more)] == ["g", None]


@pytest.mark.parametrize("way", ["ssh", "cuda"])
def test_a_script_starts_spares_on_their_hosts(tmp_path, way):
    text = ROOM.replace('kind = "whole"', 'kind = "whole"\ncuda = true')
    text = text.replace("count = 5", "count = 10")
    script = files_for(cluster_in(tmp_path, text), way, tls=True)["workers.sh"]
    lines = [line for line in script.splitlines() if "-spare-" in line]
    assert [line.split()[2] for line in lines] == [*"eeffgg"] if way == "ssh" else [*"efg"]
    for line in lines:
        words = " ".join(f"{resource}=1" for resource in LEFT)
        assert words in line
        assert "--members" not in line
        assert line.count("--cuda") == (way == "cuda")


def test_a_gang_of_slurm_ends_whole_so_it_has_no_spares(tmp_path):
    scripts = files_for(cluster_in(tmp_path, ROOM), "slurm", tls=True)
    assert list(scripts) == ["whole-0.sbatch", "room-0.sbatch", "room-1.sbatch"]
    assert "spare:" not in "".join(scripts.values())


def test_kubernetes_has_spares_of_a_kind_as_one_group(tmp_path, monkeypatch):
    text = files_for(
        cluster_in(tmp_path, ROOM.replace("count = 5", "count = 10")), "kubernetes", True
    )
    first, group, *_ = yaml.safe_load_all(text["cluster.yaml"])
    assert (first["kind"], group["kind"]) == ("DaskCluster", "DaskWorkerGroup")
    jsonschema.validate(group, schema_of("DaskWorkerGroup"))
    assert group["spec"]["worker"]["replicas"] == 6
    pod = group["spec"]["worker"]["spec"]
    assert pod["nodeSelector"] == {"topology.kubernetes.io/zone": "fra1"}
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    asked = []
    monkeypatch.setattr("tasks.worker.process.run_worker", lambda words, **_: asked.append(words))
    digen, *words = [word.replace("$(DASK_WORKER_NAME)", "pod-7") for word in container["args"]]
    assert digen == "digen"
    assert run(words) == 0
    address = "tls://digen-scheduler.default.svc:8786"
    resources = " ".join(f"{resource}=1" for resource in LEFT)
    assert asked == [[address, "--name", "pod-7", "--resources", resources]]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            '"small", "small"]',
            '"tiny"]',
            "gangs: those of kind room take tiny, but devices are large@fra1, ",
        ),
        (
            '"small", "small"]',
            '"small@x"]',
            "gangs: those of kind room take small@x, but devices are large",
        ),
        (
            "count = 2\nranks",
            "count = 3\nranks",
            "gangs: those up to kind room take more than the 4",
        ),
        ('kind = "room"', 'kind = "small"', "gangs: devices have the kind small, too; use another"),
        (
            'hosts = ["c", "d", "e", "f", "g"]',
            "gang = 5",
            "gangs: those of kind room take small, whose group has",
        ),
        ('"both"', '"trainer"', "kind room have the roles both, but their small trainer"),
        ('"small", "small"]', "]", None),
        ('"large", "large", "small", "small"', '"large"', "gangs.0.ranks: "),
        ("rtx4090", "two words", "slurm.constraints.large: "),
        ("small = ", "tiny = ", "slurm.constraints: it is tiny, but devices have the kinds"),
        (
            'large = { "',
            'huge = { "',
            "kubernetes.node_labels: it is huge, but devices have the kin",
        ),
    ],
)
def test_gangs_that_there_cannot_be_are_refused_in_one_line(tmp_path, old, new, what):
    text = ROOM.replace(old, new, 1)
    assert text != ROOM
    if what is None:
        assert cluster_in(tmp_path, text).gangs[0].members == 2
        return
    with pytest.raises(UserError, match=re.escape(what)) as error:
        cluster_in(tmp_path, text)
    assert "\n" not in str(error.value)


def started(folder, script: str) -> list[str]:
    """Return what a job script calls: threads and arguments of each worker, sorted."""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (folder / "runs" / "up").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / "up" / "env").write_text("DASK_SCHEDULER_ADDRESS=tls://10.0.0.1:8786\n")
    write_program(folder / "srun", SRUN)
    path = write_program(folder / "job.sbatch", script)
    paths = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": paths, "SCRIPT": str(path)}
    done = subprocess.run(
        ["bash", "-c", f"{path} && sleep 0.5"],  # until the steps after the first have ended, too
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted(done.stdout.splitlines())


@pytest.fixture
def python(tmp_path, monkeypatch):
    """A Python that prints what it is called with."""
    stub = write_program(tmp_path / "python", ARGUMENTS)
    monkeypatch.setattr("deployments.operation.slurm.sys", SimpleNamespace(executable=str(stub)))


def test_slurm_starts_a_team_on_each_node(tmp_path, python):
    scripts = files_for(cluster_in(tmp_path, EQUAL), "slurm", tls=True)
    assert list(scripts) == ["card-0.sbatch", "card-1.sbatch"]
    for number, script in enumerate(scripts.values()):
        assert "#SBATCH --nodes=2 --ntasks-per-node=1\n" in script
        assert "#SBATCH --cpus-per-task=6\n" in script
        assert "#SBATCH --gres=gpu:2\n" in script
        assert "#SBATCH -n 1" not in script
        assert "hetjob" not in script
        assert "--death-timeout 300 " in script, "as long as workers that are started otherwise"
        common = f"3 -m tasks.worker.process tls://10.0.0.1:8786 --name card-{number} "
        found = started(tmp_path, script)
        assert [line.startswith(common) for line in found] == [True, True]
        assert all("--resources rollout=1 trainer=1 --members 4 --ranks" in line for line in found)
        assert [line.split("--ranks ")[1].strip() for line in found] == ["0-1", "2-3"]


def test_slurm_starts_a_gang_of_unequal_cards_as_one_job_of_two_kinds(tmp_path, python):
    scripts = files_for(cluster_in(tmp_path, ROOM), "slurm", tls=False)
    assert list(scripts) == ["whole-0.sbatch", "room-0.sbatch", "room-1.sbatch"]
    script = scripts["room-1.sbatch"]
    first, second = script.split("\n#SBATCH hetjob\n")
    assert "#SBATCH --nodes=1 --ntasks-per-node=1\n" in first
    assert "#SBATCH --gres=gpu:2\n#SBATCH --constraint=rtx4090" in first
    assert "#SBATCH --nodes=2 --ntasks-per-node=1\n" in second
    assert "#SBATCH --gres=gpu:1\n#SBATCH --constraint=rtx4060ti\n" in second
    found = started(tmp_path, script)
    assert [line.split()[0] for line in found] == ["1", "1", "2"]
    assert sorted(line.split("--ranks ")[1].strip() for line in found) == ["0-1", "2-2", "3-3"]
    assert all(" --name room-1 " in line and " --insecure " in line for line in found)
    assert all("fra1" in line for line in found)


def test_a_job_of_several_kinds_has_to_know_their_nodes(tmp_path):
    cluster = cluster_in(tmp_path, ROOM.replace('small = "rtx4060ti"', ""))
    with pytest.raises(UserError, match=r"which nodes have small; set \[slurm.constraints\] small"):
        files_for(cluster, "slurm", tls=True)


def test_kubernetes_starts_a_team_in_each_pod_of_an_indexed_job(tmp_path):
    cluster = cluster_in(tmp_path, ROOM)
    text = files_for(cluster, "kubernetes", tls=True)["cluster.yaml"]
    operator, _, *jobs = yaml.safe_load_all(text)
    assert operator["kind"] == "DaskCluster"
    assert operator["spec"]["worker"]["replicas"] == 1
    assert [job["spec"]["completions"] for job in jobs] == [1, 2, 1, 2]
    write_program(tmp_path / "digen", ARGUMENTS)
    found = []
    for job in jobs:
        assert known(job, "V1Job") == job, "Kubernetes would drop a key"
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        command = container["args"]
        assert not re.search(r"\$\([A-Za-z_]", command[-1]), "Kubernetes would fill it in"
        for index in range(job["spec"]["completions"]):
            environment = {
                "JOB_COMPLETION_INDEX": str(index),
                "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            }
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            found.append(done.stdout.strip())
    ranks = [(re.search("--name ([^ ]+)", line)[1], line.split("--ranks ")[1]) for line in found]
    assert ranks == [
        ("room-0", "0-1"), ("room-0", "2-2"), ("room-0", "3-3"),
        ("room-1", "0-1"), ("room-1", "2-2"), ("room-1", "3-3"),
    ]  # fmt: skip
    assert all("--role=both --members 4 --site fra1 --threads" in line for line in found)
    pods = [job["spec"]["template"]["spec"] for job in jobs[:2]]
    assert [pod["nodeSelector"].get("nvidia.com/gpu.product") for pod in pods] == ["RTX-4090", None]
    limits = [pod["containers"][0]["resources"]["limits"] for pod in pods]
    assert [(own["cpu"], own["nvidia.com/gpu"]) for own in limits] == [("4", "2"), ("1", "1")]
    assert ["/dev/shm" in str(pod) for pod in pods] == [True, False], "where a pod has several"


def test_where_all_are_in_such_gangs_the_operator_starts_none(tmp_path):
    text = files_for(cluster_in(tmp_path, EQUAL), "kubernetes", tls=False)["cluster.yaml"]
    operator, *jobs = yaml.safe_load_all(text)
    assert operator["spec"]["worker"]["replicas"] == 0
    assert len(jobs) == 2
    names = [job["metadata"]["name"] for job in jobs]
    assert names == ["digen-gang-0", "digen-gang-1"]


def known(resource: dict, kind: str) -> dict:
    """What of a resource Kubernetes knows."""
    client = ApiClient()
    read = client.deserialize(json.dumps(resource), kind, "application/json")
    return client.sanitize_for_serialization(read)


def test_unknown_keys_of_jobs_would_be_seen(tmp_path):
    text = files_for(cluster_in(tmp_path, EQUAL), "kubernetes", tls=True)["cluster.yaml"]
    job = list(yaml.safe_load_all(text))[-1]
    job["spec"]["indexes"] = 2
    assert known(job, "V1Job") != job


def test_the_table_shows_gangs_of_unequal_devices(tmp_path, capsys):
    (tmp_path / "room.toml").write_text(ROOM)
    assert run(["cluster", "show", str(tmp_path / "room.toml")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "room 2 gangs of 4 both large large small" in words
    assert "small-spare 1 spare for room-0.2 room-0.3 room-1.2" in words


def test_what_only_starts_workers_does_not_keep_devices_from_changing(tmp_path):
    """For plans of one device more or less, and of gangs of each size."""
    cluster = cluster_in(tmp_path, ROOM)
    assert [own.gang for own in cluster.in_gangs(1).devices] == [1, 1, 1]
    names = [what for what, changed in _changed(cluster) if not changed.gangs]
    assert names == [
        "+1 large", "-1 large", "+1 small", "-1 small", "+1 whole (rollout)", "-1 whole (rollout)",
    ]  # fmt: skip


def test_what_is_wrong_in_a_list_is_told_once_and_in_plain_words(tmp_path):
    for said, words in (('["large", 3]', "ranks.1: must be a valid string (got 3)"), ("[]", None)):
        text = re.sub("ranks = .*", f"ranks = {said}", ROOM, count=1)
        with pytest.raises(UserError) as error:
            cluster_in(tmp_path, text)
        words = words or "ranks: must have 2 or more values (got [])"
        assert str(error.value).endswith(f"toml: gangs.0.{words}")
