"""What starts workers elsewhere, as text: checked by a shell and by the operator's own schema."""

import re
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from distributed.cli.dask_scheduler import main as scheduler_command

from deployments.cli import run
from deployments.operation.launching import files_for
from deployments.operation.workers import workers_of
from deployments.shipped import CLUSTERS
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import load_cluster
from support.operator_schema import schema_of
from tasks.cluster import ahead, lineage
from tasks.cluster.cluster import QUIET, as_environment

MIXED = """
network = 25
[slurm]
partition = "gpu"
account = "lab"
memory = "32GB"
[kubernetes]
image = "example/digen:1"
namespace = "rl"
[[devices]]
kind = "h100"
count = 4
cuda = true
threads = 8
hosts = ["node-1", "me@node-2"]
site = "fra1"
link = 50
[[devices]]
kind = "a100"
count = 1
roles = "rollout"
cuda = true
hosts = ["node-3"]
[[devices]]
kind = "h100"
count = 2
roles = "trainer"
cuda = true
hosts = ["node-1"]
[[reward_devices]]
kind = "l40s"
count = 1
pool = "judges"
cuda = true
hosts = ["node-3"]
"""


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text(MIXED)
    return load_cluster(path)


def commands_in(script: str) -> list[tuple[str, str]]:
    """Pipe a script to a shell, as is documented, and return host and command of each ssh.

    That only prints, and reads what it is given as ssh does: without -n the rest of the script.
    """
    reads = 'if [ "$1" = -n ]; then shift; else cat >/dev/null; fi'
    shim = f'ssh() {{ {reads}; printf "%s\\0%s\\0" "$1" "$2"; }}\n'
    done = subprocess.run(["bash"], input=shim + script, capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[:-1]
    return list(zip(words[::2], words[1::2], strict=True))


def test_each_worker_has_its_name_host_and_gpu(cluster):
    found = [(worker.name, worker.host, *worker.gpus) for worker in workers_of(cluster)]
    assert found == [
        ("h100-0", "node-1", 0),
        ("h100-1", "node-1", 1),
        ("h100-2", "me@node-2", 0),
        ("h100-3", "me@node-2", 1),
        ("a100-0", "node-3", 0),
        ("h100-4", "node-1", 2),
        ("h100-5", "node-1", 3),
        ("l40s-0", "node-3", 1),
    ]


def test_a_gang_is_one_command_for_all_its_gpus(tmp_path):
    file = tmp_path / "gangs.toml"
    file.write_text(
        """
        [[devices]]
        kind = "h100"
        count = 16
        gang = 4
        cuda = true
        hosts = ["node-1", "node-2"]
        [reference]
        step = { per_item = 1.0 }
        pack = { per_item = 1.0 }
        """
    )
    cluster = load_cluster(file)
    assert [device.name for device in cluster.fleet] == ["h100-0", "h100-1", "h100-2", "h100-3"]
    found = [(worker.host, worker.gpus, worker.names[-1]) for worker in workers_of(cluster)]
    assert found == [
        ("node-1", (0, 1, 2, 3), "h100-0.3"),
        ("node-1", (4, 5, 6, 7), "h100-1.3"),
        ("node-2", (0, 1, 2, 3), "h100-2.3"),
        ("node-2", (4, 5, 6, 7), "h100-3.3"),
    ]
    for way in ("ssh", "cuda"):
        commands = commands_in(files_for(cluster, way, tls=True)["workers.sh"])
        assert len(commands) == 4
        for (_, command), gpus in zip(commands, ["0,1,2,3", "4,5,6,7"] * 2, strict=True):
            assert f"CUDA_VISIBLE_DEVICES={gpus} " in command
            assert " --members 4" in command
            assert "--cuda" not in command
    (script,) = files_for(cluster, "slurm", tls=True).values()
    assert "#SBATCH --array=0-3\n" in script
    assert "#SBATCH --gres=gpu:4\n" in script
    assert " --members 4" in script
    (pods, *_) = yaml.safe_load_all(files_for(cluster, "kubernetes", tls=True)["cluster.yaml"])
    worker = pods["spec"]["worker"]
    (container,) = worker["spec"]["containers"]
    assert worker["replicas"] == 4
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert container["args"][-4:-2] == ["--members", "4"]
    jsonschema.validate(pods, schema_of("DaskCluster"))
    mounts = {own["mountPath"]: own["name"] for own in container["volumeMounts"]}
    volumes = {own["name"]: own for own in worker["spec"]["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    assert volumes[mounts["/tls"]]["secret"] == {"secretName": "digen-tls"}


SPREAD = """
[[devices]]
kind = "card"
count = 8
gang = 4
gang_hosts = 2
cuda = true
hosts = ["a", "b", "c", "d"]
[reference]
step = { per_item = 1.0 }
pack = { per_item = 1.0 }
"""


def test_a_gang_on_several_hosts_is_a_command_on_each(tmp_path):
    file = tmp_path / "room.toml"
    file.write_text(SPREAD)
    cluster = load_cluster(file)
    assert [device.name for device in cluster.fleet] == ["card-0", "card-1"]
    found = [(worker.host, worker.gpus, worker.names) for worker in workers_of(cluster)]
    assert found == [
        ("a", (0, 1), ("card-0", "card-0.1")),
        ("b", (0, 1), ("card-0.2", "card-0.3")),
        ("c", (0, 1), ("card-1", "card-1.1")),
        ("d", (0, 1), ("card-1.2", "card-1.3")),
    ]
    for way in ("ssh", "cuda"):
        commands = commands_in(files_for(cluster, way, tls=True)["workers.sh"])
        assert [host for host, _ in commands] == ["a", "b", "c", "d"]
        logs = {re.search(r">(\S+)", command)[1] for _, command in commands}
        assert len(logs) == 4
        for number, (_, command) in enumerate(commands):
            assert f" --name card-{number // 2} " in command
            assert command.count("--members 4 --ranks ") == 1
            assert f" --ranks {'2-3' if number % 2 else '0-1'} " in command


def test_two_gangs_may_be_on_the_same_hosts(tmp_path):
    file = tmp_path / "room.toml"
    file.write_text(SPREAD.replace(', "c", "d"', ""))
    found = [(w.names[0], w.host, w.gpus) for w in workers_of(load_cluster(file))]
    assert found == [
        ("card-0", "a", (0, 1)),
        ("card-0.2", "b", (0, 1)),
        ("card-1", "a", (2, 3)),
        ("card-1.2", "b", (2, 3)),
    ]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("gang_hosts = 2", "", "8 of kind card on 4 hosts are no whole gangs of 4"),
        ("gang_hosts = 2", "gang_hosts = 3", "on 4 hosts are no whole gangs of 4, on 3 hosts each"),
        ("gang = 4", "", "8 of kind card on 4 hosts are no whole gangs of 1, on 2 hosts each"),
        ('"a", "b", "c", "d"', '"a"', "card on 1 host are no whole gangs of 4, on 2 hosts each"),
        ("gang_hosts = 2", "gang_hosts = 0", "devices.0.gang_hosts: must be greater than or equal"),
    ],
)
def test_gangs_that_do_not_come_out_even_are_refused(tmp_path, old, new, what):
    file = tmp_path / "room.toml"
    file.write_text(SPREAD.replace(old, new))
    with pytest.raises(UserError, match=re.escape(what)):
        load_cluster(file)


def test_over_ssh_each_host_gets_its_own_workers(cluster):
    commands = commands_in(files_for(cluster, "ssh", tls=True)["workers.sh"])
    workers = workers_of(cluster)
    assert [host for host, _ in commands] == [worker.host for worker in workers]
    for worker, (_, command) in zip(workers, commands, strict=True):
        subprocess.run(["bash", "-n", "-c", command], check=True)
        environment = "; set -a; . runs/up/env; set +a; nohup env OMP_NUM_THREADS="
        assert f"{environment}{worker.group.threads} " in command
        assert f"CUDA_VISIBLE_DEVICES={worker.gpus[0]} " in command
        resources = " ".join(f"{role}=1" for role in sorted(worker.group.declared))
        assert f"-m tasks.worker.process --name {worker.name} --resources" in command
        assert resources in command


@pytest.mark.parametrize("way", ["ssh", "cuda", "slurm", "kubernetes"])
def test_workers_listen_without_tls_only_where_it_was_switched_off(cluster, way):
    secure, insecure = ("".join(files_for(cluster, way, tls).values()) for tls in (True, False))
    assert "--insecure" not in secure
    starts = {"ssh": "tasks.worker.process", "cuda": "--cuda", "slurm": "tasks.worker.process"}
    assert insecure.count("--insecure") == insecure.count(starts.get(way, "DASK_WORKER_NAME"))


def test_dask_cuda_is_called_once_for_each_host_of_a_group(cluster):
    commands = commands_in(files_for(cluster, "cuda", tls=True)["workers.sh"])
    assert [host for host, _ in commands] == ["node-1", "me@node-2", "node-3", "node-1", "node-3"]
    assert all(command.count("--cuda") == 1 for _, command in commands)
    gpus = [re.search(r"CUDA_VISIBLE_DEVICES=(\S+)", command)[1] for _, command in commands]
    assert gpus == ["0,1", "0,1", "0", "2,3", "1"]
    names = [re.search(r"--name (\S+)", command)[1] for _, command in commands]
    assert len(set(names)) == len(names)


def test_slurm_gets_a_job_array_for_each_group(cluster):
    scripts = files_for(cluster, "slurm", tls=True)
    names = ["h100-0.sbatch", "a100-0.sbatch", "h100-4.sbatch", "l40s-0.sbatch"]
    assert list(scripts) == names
    for text in scripts.values():
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert "#SBATCH -p gpu\n#SBATCH -A lab\n" in text
        assert "#SBATCH --gres=gpu:1\n" in text
        assert "#SBATCH --mem=30G\n" in text
        assert text.count("$SLURM_ARRAY_TASK_ID") == 1
    assert "#SBATCH --array=0-3\n" in scripts["h100-0.sbatch"]
    assert "#SBATCH --cpus-per-task=8\n" in scripts["h100-0.sbatch"]
    assert "#SBATCH --array=4-5\n" in scripts["h100-4.sbatch"]
    assert scripts["h100-4.sbatch"].rstrip().endswith("--resources trainer=1")
    assert scripts["l40s-0.sbatch"].rstrip().endswith("--resources judges=1")


@pytest.mark.parametrize("text", [MIXED, SPREAD], ids=["arrays", "gangs"])
def test_slurm_finds_the_folder_and_python_whatever_their_paths_hold(tmp_path, monkeypatch, text):
    folder = tmp_path / "my lab's #1 $disk \\ 2\""
    (folder / "runs/up").mkdir(parents=True)
    (folder / "runs/up/env").touch()
    (python := folder / "python").write_text("#!/bin/sh\nprintf 'started %s' \"$*\"\n")
    python.chmod(0o755)
    (folder / "mixed.toml").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.executable", str(python))
    script = next(iter(files_for(load_cluster(Path("mixed.toml")), "slurm", tls=True).values()))
    (chdir,) = re.findall(r"^#SBATCH (--chdir=.*)$", script, re.MULTILINE)
    # sbatch (22.05 was asked) expands nothing, and ends a word at a space, also behind a backslash
    assert chdir.startswith('--chdir="')
    assert shlex.split(chdir, comments=True) == [f"--chdir={folder}"]
    srun = 'srun() { while [ "$1" != bash ]; do shift; done; "$@"; }\n'
    done = subprocess.run(["bash", "-c", srun + script], capture_output=True, text=True)
    assert done.stdout.startswith("started -m tasks.worker.process"), done.stderr


def test_the_last_value_of_an_option_counts_for_dask_worker():
    from distributed.cli.dask_worker import main

    words = "tcp://h:1 --nthreads 8 --memory-limit 9GiB --nthreads 1 --memory-limit 0"
    found = main.make_context("dask worker", words.split()).params
    assert (found["nthreads"], found["memory_limit"]) == (1, "0")


@pytest.mark.parametrize("tls", [True, False])
def test_kubernetes_takes_what_the_operator_takes(cluster, tls):
    text = files_for(cluster, "kubernetes", tls)["cluster.yaml"]
    resources = list(yaml.safe_load_all(text))
    assert [resource["kind"] for resource in resources] == [
        "DaskCluster", "DaskWorkerGroup", "DaskWorkerGroup", "DaskWorkerGroup",
    ]  # fmt: skip
    for resource in resources:
        jsonschema.validate(resource, schema_of(resource["kind"]))
        assert resource["metadata"]["namespace"] == "rl"
    worker = resources[0]["spec"]["worker"]
    assert worker["replicas"] == 4
    assert worker["spec"]["nodeSelector"] == {"topology.kubernetes.io/zone": "fra1"}
    (container,) = worker["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["args"][2] == ("tls" if tls else "tcp") + "://digen-scheduler.rl.svc:8786"
    assert ("/tls/certificate.pem" in text) == tls
    assert "/dev/shm" not in text, "each pod has one worker"
    assert resources[1]["spec"]["cluster"] == resources[0]["metadata"]["name"]


@pytest.mark.parametrize("tls", [True, False])
def test_pods_have_the_folder_that_a_claim_names(tmp_path, monkeypatch, tls):
    """Under its own path: workers write into the run's folder, and read what configs name."""
    path = tmp_path / "claimed.toml"
    path.write_text(MIXED.replace("[kubernetes]", '[kubernetes]\nclaim = "rl-home"'))
    monkeypatch.chdir(tmp_path)
    files = files_for(load_cluster(path), "kubernetes", tls)
    resources = list(yaml.safe_load_all(files["cluster.yaml"]))
    for resource in resources:
        jsonschema.validate(resource, schema_of(resource["kind"]))
        pod = resource["spec"]["worker"]["spec"]
        (container,) = pod["containers"]
        mounts = {own["mountPath"]: own["name"] for own in container["volumeMounts"]}
        volumes = {own["name"]: own for own in pod["volumes"]}
        claim = volumes[mounts[str(tmp_path)]]["persistentVolumeClaim"]
        assert claim == {"claimName": "rl-home"}
        assert container["workingDir"] == str(tmp_path)
    assert "rl-home" not in str(resources[0]["spec"]["scheduler"])


def test_the_scheduler_in_kubernetes_is_set_up_as_that_of_digen_up(cluster):
    """Without it the scheduler remembers more with every task, and sites get each value anew."""
    (resource, *_) = yaml.safe_load_all(files_for(cluster, "kubernetes", True)["cluster.yaml"])
    (container,) = resource["spec"]["scheduler"]["spec"]["containers"]
    assert {own["name"]: own["value"] for own in container["env"]}.items() >= {
        *as_environment(QUIET).items(),
        ("DASK_DISTRIBUTED__COMM__TLS__CA_FILE", "/tls/certificate.pem"),
    }
    options = scheduler_command.make_context("dask scheduler", container["args"][2:]).params
    assert options["preload"] == (lineage.PRELOAD, ahead.PRELOAD)
    assert (options["host"], options["protocol"]) == ("0.0.0.0", "tls")


def test_the_schema_of_the_operator_is_no_empty_one(cluster):
    resource = next(yaml.safe_load_all(files_for(cluster, "kubernetes", True)["cluster.yaml"]))
    resource["spec"]["worker"]["spec"]["containers"][0]["imagine"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="'imagine' was unexpected"):
        jsonschema.validate(resource, schema_of("DaskCluster"))


def test_what_a_way_lacks_is_said(cluster):
    bare = load_cluster(CLUSTERS / "2-cores.toml")
    with pytest.raises(UserError, match=r"kind core have no hosts; set their hosts = \[...\]"):
        files_for(bare, "ssh", tls=True)
    groups = [group.model_copy(update={"hosts": ("node-1",)}) for group in bare.devices]
    there = bare.model_copy(update={"devices": tuple(groups)})
    with pytest.raises(UserError, match="kind core are no GPUs; set their cuda = true"):
        files_for(there, "cuda", tls=True)


def test_workers_of_this_machine_are_left_to_digen_up(tmp_path):
    path = tmp_path / "mixed.toml"
    path.write_text(MIXED.replace('hosts = ["node-1", "me@node-2"]', ""))
    for way, number in (("ssh", 4), ("cuda", 3)):
        commands = commands_in(files_for(load_cluster(path), way, tls=True)["workers.sh"])
        assert [host for host, _ in commands] == ["node-3", *["node-1"] * (number - 2), "node-3"]


def test_files_are_written_where_they_are_wanted(tmp_path, capsys):
    path = tmp_path / "mixed.toml"
    path.write_text(MIXED)
    assert (
        run(["cluster", "show", str(path), "--for", "slurm", "--out", str(tmp_path / "jobs")]) == 0
    )
    written = capsys.readouterr().out.split()
    assert [Path(name).name for name in written] == [
        "h100-0.sbatch", "a100-0.sbatch", "h100-4.sbatch", "l40s-0.sbatch",
    ]  # fmt: skip
    assert all(Path(name).read_text().startswith("#!") for name in written)
    assert run(["cluster", "show", str(path)]) == 0
    assert "node-1" in capsys.readouterr().out
    assert run(["cluster", "show", str(path), "--out", str(tmp_path / "none")]) == 2
    assert "none, but a table is printed; say what to write by --for" in capsys.readouterr().err
