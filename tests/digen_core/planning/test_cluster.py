"""Cluster files: the shipped ones, costs by hand, and what is wrong with a file."""

from dataclasses import replace

import pytest

from deployments.shipped import CLUSTERS, find_cluster, find_config
from digen_core.config.load import load_config
from digen_core.config.parallel import ParallelConfig
from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, DeviceCosts, Linear, Sent
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import load_cluster
from digen_core.planning.estimate import with_estimates
from digen_core.planning.sizes import Sizes, costs_of_sizes

MIXED = """
push = 2.0
[[devices]]
kind = "h100"
count = 2
roles = "trainer"
price_per_hour = 3.0
watts = 700
[[devices]]
kind = "a100"
count = 1
speed = 0.5
price_per_hour = 1.0
watts = 400
[reference]
step = { fixed = 0.1, per_item = 0.2 }
pack = { fixed = 0.5, per_item = 0.25 }
"""
SIZES = Sizes(
    parameters=10**10,
    trained_parameters=5 * 10**8,
    trains_all=False,
    weight_bytes=20 * 10**9,
    push_bytes=2 * 10**9,
    step_flops=10**13,
    pair_flops=28 * 10**12,
    decode_flops=45 * 10**11,
    latent_bytes=10**5,
    velocity_bytes=0,
    trajectory_bytes=10**6,
    embedding_bytes=10**6,
)
LINE = DeviceCosts(step=Linear(fixed=1.0), pack=Linear(fixed=2.0))


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MIXED)
    return load_cluster(path)


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_clusters_say_what_everything_costs(path):
    cluster = load_cluster(path)
    if cluster.leaves_costs_to_data_sheets:
        cluster = with_estimates(cluster, SIZES, RunConfig())
    assert set(cluster.costs().kinds) == {device.kind for device in cluster.fleet}
    assert min(cluster.watts, cluster.price_per_hour) > 0


def test_devices_and_sums_by_hand(mixed):
    assert [device.name for device in mixed.fleet] == ["h100-0", "h100-1", "a100-0"]
    assert [sorted(device.roles) for device in mixed.fleet] == [
        ["trainer"], ["trainer"], ["rollout", "trainer"],
    ]  # fmt: skip
    assert mixed.price_per_hour == 7.0
    assert mixed.watts == 1800.0


def test_half_the_speed_takes_twice_the_time(mixed):
    costs = mixed.costs()
    assert costs.push == 2.0
    assert costs.kinds["h100"].pack(2) == 1.0
    assert costs.kinds["a100"].pack(2) == 2.0
    assert costs.kinds["a100"].step(1) == pytest.approx(0.6)


def test_a_profile_wins_over_the_file(mixed):
    profile = Costs(kinds={"a100": LINE}, push=0.25)
    costs = mixed.costs(profile)
    assert costs.push == 0.25
    assert costs.kinds["a100"] == LINE
    assert costs.kinds["h100"].pack(2) == 1.0  # at twice the speed of the kind that it knows


def test_a_kind_that_a_profile_does_not_know_costs_what_another_does_over_their_speeds(mixed):
    others = {"l40": LINE, "h100": LINE, "a100": LINE}
    for unknown, pack in (("a100", 4.0), ("h100", 1.0)):
        known = {kind: line for kind, line in others.items() if kind != unknown}
        assert mixed.costs(Costs(kinds=known)).kinds[unknown].pack(2) == pack
    assert mixed.costs(Costs(kinds={"l40": LINE})).kinds["a100"].pack(2) == 4.0


def test_where_no_speed_is_said_peaks_are_those_of_kinds_that_a_profile_does_not_know(mixed):
    groups = tuple(
        group.model_copy(update={"speed": 1.0, "tflops": tflops})
        for group, tflops in zip(mixed.devices, (989.0, 312.0), strict=True)
    )
    sheets = mixed.model_copy(update={"devices": groups, "reference": None})
    costs = sheets.costs(Costs(kinds={"h100": LINE}))
    assert costs.kinds["a100"].pack(2) == pytest.approx(2.0 * 989 / 312)
    own = groups[1].model_copy(update={"costs": LINE})
    kept = sheets.model_copy(update={"devices": (groups[0], own)})
    assert kept.costs(Costs(kinds={"h100": LINE})).kinds["a100"] == LINE


def test_estimates_by_hand(mixed):
    """10 TFLOP at 23% of 100 TFLOP/s; 20 GB at 1000 GB/s, read twice for a gradient."""
    groups = tuple(
        group.model_copy(update={"tflops": tflops, "bandwidth": bandwidth})
        for group, tflops, bandwidth in zip(
            mixed.devices, (100.0, 50.0), (1000.0, None), strict=True
        )
    )
    bare = mixed.model_copy(update={"devices": groups, "reference": None, "network": 4.0})
    assert bare.leaves_costs_to_data_sheets
    assert not mixed.leaves_costs_to_data_sheets
    costs = with_estimates(bare, SIZES, RunConfig()).costs()
    h100, a100 = costs.kinds["h100"], costs.kinds["a100"]
    assert costs.push == pytest.approx(0.5)  # 2 GB at 4 GB/s
    assert h100.step(3) == pytest.approx(0.02 + 3 * 10 / 23)
    assert h100.decode(3) == pytest.approx(3 * 4.5 / 23)
    assert h100.pack(2) == pytest.approx(0.04 + 2 * 28 / 21)
    assert a100.step(3) == pytest.approx(3 * 10 / 11.5)
    with_own = groups[0].model_copy(update={"costs": LINE})
    kept = bare.model_copy(update={"devices": (with_own, groups[1])})
    assert with_estimates(kept, SIZES, RunConfig()).costs().kinds["h100"] == LINE


def test_estimates_of_several_sizes_are_of_the_mean_one(mixed):
    """Steps cost what theirs do in the mean, with their text; decoding what pixels do."""
    groups = tuple(group.model_copy(update={"tflops": 100.0}) for group in mixed.devices)
    bare = mixed.model_copy(update={"devices": groups, "reference": None})
    model = load_config(find_config("shapes")).model
    sizes = (model.size, (model.height // 2, model.width // 2, 1))
    config = RunConfig(model=model.model_copy(update={"sizes": sizes}))
    whole, _half = costs_of_sizes(config.model).values()
    assert whole < 1.3  # and its pixels are 1.6 of the mean: text costs both as much
    costs = with_estimates(bare, SIZES, config).costs().kinds["h100"]
    assert costs.step(8) == pytest.approx(8 / whole * 10 / 23)
    assert costs.pack(8) == pytest.approx(8 / whole * 28 / 21)
    assert costs.decode(8) == pytest.approx(5 * 4.5 / 23)


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_estimates_of_a_gang_by_hand(mixed, degree):
    """Four GPUs: shares of samples, in each of which ``degree`` deal the tokens at 85%."""
    sheet = {"tflops": 100.0, "bandwidth": 1000.0, "gang": 4, "count": 4, "peer_link": 100.0}
    gangs = mixed.devices[0].model_copy(update=sheet)
    cluster = mixed.model_copy(update={"devices": (gangs,), "network": 4.0, "reference": None})
    parallel = ParallelConfig(context_parallel=degree)
    costs = with_estimates(cluster, SIZES, RunConfig(parallel=parallel)).costs()
    gang, shares = costs.kinds["h100"], 4 // degree
    together = degree * (0.85 if degree > 1 else 1)
    assert gang.step(3) == pytest.approx(0.02 + -(-3 // shares) * 10 / (23 * together))
    assert gang.pack(2) == pytest.approx(0.04 + -(-2 // shares) * 28 / (21 * together))
    assert gang.decode(3) == pytest.approx(3 * 4.5 / 23)  # by the leader
    assert costs.push == pytest.approx(0.5)  # adapters, by the leader
    assert costs.gradient_sum == pytest.approx(0.5)  # of 5 x 10^8 numbers of 4 bytes
    sharded = parallel.model_copy(update={"shard_weights": True})
    everything = replace(SIZES, trains_all=True)
    costs = with_estimates(cluster, everything, RunConfig(parallel=sharded)).costs()
    own = costs.kinds["h100"]
    assert own.step(3) - gang.step(3) == pytest.approx(0.15)  # three quarters of 20 GB at 100 GB/s
    assert own.pack(2) - gang.pack(2) == pytest.approx(2 * 0.15 + 0.015)  # and of 2 GB of gradients
    assert costs.push == pytest.approx(0.125)  # each member its rows
    assert costs.gradient_sum == pytest.approx(0.125)


def test_a_profile_wins_kind_in_two_groups_differ(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MIXED.replace("a100", "h100").replace("speed = 0.5", ""))
    names = [device.name for device in load_cluster(path).fleet]
    assert names == ["h100-0", "h100-1", "h100-2"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count = 2", "count = 0", "devices.0.count: must be greater than or equal to 1 (got 0)"),
        ("speed = 0.5", "sped = 0.5", "unknown key devices.1.sped; did you mean devices.speed?"),
        ("push = 2.0", "pushes = 2.0", "unknown key pushes; did you mean push?"),
        ("speed = 0.5", "speed = 0", "devices.1.speed: must be greater than or equal to 1e-06"),
        (
            "speed = 0.5",
            "speed = 1e300",
            "devices.1.speed: must be less than or equal to 1000000000",
        ),
        (
            "speed = 0.5",
            "tflops = 1e-300",
            "devices.1.tflops: must be greater than or equal to 1e",
        ),
        ("push = 2.0", "push = 1e308", "push: must be at most 31536000: these are the seconds of"),
        ("watts = 700", "watts = 1e308", "devices.0.watts: must be less than or equal to 10000000"),
        ("fixed = 0.5", "fixed = 1e300", "reference: a pack costs 1e+300 seconds; use 1e-09 to"),
        (
            "fixed = 0.5, per_item = 0.25",
            "per_item = 1e-300",
            "reference: a pack costs 1e-300 seconds; use 1e-09 to 31536000, those of a year",
        ),
        ('roles = "trainer"', 'roles = "all"', "devices.0.roles: must be 'rollout', 'trainer' or"),
        ('kind = "a100"', 'kind = "h100"', "kind h100 has two speeds, costs or gangs"),
        ('kind = "h100"', "", "devices.0.kind is missing"),
        ("fixed = 0.5, per_item = 0.25", "", "reference: a step or a pack costs nothing"),
        ("fixed = 0.5", "fixed = -0.5", "reference.pack.fixed: must be greater than or equal to 0"),
        ("speed = 0.5", 'roles = "trainer"', "none has the role rollout; give one roles rollout"),
        ("count = 2", "count = ", "is not valid TOML"),
        (
            "watts = 700",
            'watts = 700\nhosts = ["a", "b", "c"]',
            "mine.toml: devices: kind h100 has 3 hosts, but 2 devices in all",
        ),
        (
            "watts = 700",
            "watts = 700\nidle_watts = 701",
            "devices: kind h100 has idle_watts 701, but at work only 700 watts",
        ),
        ("watts = 700", "watts = nan", "devices.0.watts: must be a finite number (got nan)"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(old, new, message, tmp_path):
    check_refused(MIXED.replace(old, new, 1), message, tmp_path)


def check_refused(text, message, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_cluster(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


HOSTILE = {
    "an option of ssh": ('hosts = ["-oProxyCommand=touch x"]', "devices.0.hosts.0: "),
    "an option without spaces": ('hosts = ["-oProxyCommand=id"]', "devices.0.hosts.0: "),
    "an option as the user": ('hosts = ["-l@node-1"]', "devices.0.hosts.0: "),
    "an option after the user": ('hosts = ["me@-oProxyCommand=id"]', "devices.0.hosts.0: "),
    "two lines in a host": ('hosts = ["node-1\\nrm"]', "devices.0.hosts.0: "),
    "a command in a host": ('hosts = ["node-1;id"]', "devices.0.hosts.0: "),
    "no host": ('hosts = [""]', "devices.0.hosts.0: "),
    "two lines in a site": ('site = "a\\nb"', "devices.0.site: "),
    "a path as a site": ('site = "../a"', "devices.0.site: "),
    "two lines in a partition": ('[slurm]\npartition = "a\\n#SBATCH -w x"', "slurm.partition: "),
    "a space in an account": ('[slurm]\naccount = "a b"', "slurm.account: "),
    "an option as a partition": ('[slurm]\npartition = "--wrap"', "slurm.partition: "),
    "two lines in an image": ('[kubernetes]\nimage = "a\\nb"', "kubernetes.image: "),
}
KINDS = {"two lines": "a\\nb", "a space": "a b", "a path": "../a", "an option": "-a", "empty": ""}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_would_be_another_command_is_refused(case, tmp_path):
    line, key = HOSTILE[case]
    path = tmp_path / "mine.toml"
    if line.startswith("["):
        path.write_text(f"{MIXED}\n{line}\n")
    else:
        path.write_text(MIXED.replace("watts = 700", f"watts = 700\n{line}", 1))
    with pytest.raises(UserError, match=rf"{key}.*must match \^.*\(got '[^\n]*'\)") as error:
        load_cluster(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", KINDS)
def test_a_kind_is_a_name(case, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MIXED.replace('kind = "h100"', f'kind = "{KINDS[case]}"'))
    with pytest.raises(UserError, match=r"devices.0.kind: must match \^\[A-Za-z0-9\]"):
        load_cluster(path)


@pytest.mark.parametrize("host", ["node-1", "me@10.0.0.1", "a_b.c@node.example.org", "::1"])
def test_hosts_as_ssh_takes_them(host, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MIXED.replace("watts = 700", f'watts = 700\nhosts = ["{host}"]', 1))
    assert load_cluster(path).devices[0].hosts == (host,)


def test_a_gpus_name_is_written_with_hyphens(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MIXED.replace('"a100"', '"NVIDIA-A100-SXM4-40GB"'))
    costs = load_cluster(path).costs(Costs(kinds={"NVIDIA A100-SXM4-40GB": LINE}))
    assert costs.kinds["NVIDIA-A100-SXM4-40GB"] == LINE


@pytest.mark.parametrize("memory", ["0GB", "1KB", "0.0001MB"])
def test_slurm_is_asked_for_some_memory(memory, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f'{MIXED}\n[slurm]\nmemory = "{memory}"\n')
    told = rf"slurm.memory: a worker takes 1MB and more \(got '{memory}'\)"
    with pytest.raises(UserError, match=told):
        load_cluster(path)


def test_memory_of_pods_is_written_as_kubernetes_does(tmp_path):
    """Of thousands it knows a small k, and of bytes none."""
    path = tmp_path / "mine.toml"
    for memory in ("512Mi", "64G", "1.5Ti", "68719476736"):
        path.write_text(f'{MIXED}\n[kubernetes]\nmemory = "{memory}"\n')
        assert load_cluster(path).kubernetes.memory == memory
    for memory in ("64000000K", "64GB"):
        path.write_text(f'{MIXED}\n[kubernetes]\nmemory = "{memory}"\n')
        with pytest.raises(UserError, match=r"kubernetes\.memory"):
            load_cluster(path)


@pytest.mark.parametrize("gang", [1, 8])
def test_one_device_does_both(gang, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f'devices = [{{ kind = "h100", count = {gang}, gang = {gang} }}]')
    (device,) = load_cluster(path).fleet
    assert (device.size, device.roles) == (gang, frozenset(("rollout", "trainer")))
    path.write_text('devices = [{ kind = "h100", count = 1, roles = "rollout" }]')
    with pytest.raises(UserError, match="none has the role trainer"):
        load_cluster(path)


def test_a_wrong_device_is_told_and_not_that_there_is_none(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('devices = [{ kind = "h100", count = 20000 }]')
    with pytest.raises(UserError, match=r"devices\.0\.count: must be at most") as error:
        load_cluster(path)
    assert "or more values" not in str(error.value)


def test_costs_that_nobody_knows(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('devices = [{ kind = "h100", count = 2 }]')
    with pytest.raises(UserError, match="does not say what a h100 costs; give it costs or"):
        load_cluster(path).costs()


def test_clusters_are_found_by_name(tmp_path):
    assert find_cluster("2-cores") == load_cluster(CLUSTERS / "2-cores.toml")
    with pytest.raises(UserError, match=r"no cluster 3-cores; use 16x-mixed, 16x-two-sites, 2-"):
        find_cluster("3-cores")
    with pytest.raises(UserError, match=r"cannot read the cluster .*no\.toml: No such file"):
        find_cluster(str(tmp_path / "no.toml"))


LINKED = """
[[devices]]
kind = "fast"
site = "a"
count = 2
price_per_hour = 3.0
costs = { step = { fixed = 1.0 }, pack = { fixed = 1.0 } }
[[devices]]
kind = "slow"
site = "b"
count = 3
price_per_hour = 1.0
costs = { step = { fixed = 2.0 }, pack = { fixed = 2.0 } }
[[links]]
between = ["b", "a"]
gbit_per_second = 0.8
latency = 0.05
price_per_gb = 0.02
"""


def test_links_are_costs(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(LINKED)
    cluster = load_cluster(path)
    sent = Sent(version=2e8)
    costs = cluster.costs(sent=sent)
    assert costs.links[0].seconds(2e8) == pytest.approx(2.05)
    assert costs.crossing({"a", "b"}) == pytest.approx(2.05)
    assert costs.crossing({"a"}) == 0.0
    assert cluster.costs(Costs(kinds={}), sent).links == costs.links
    seen = cluster.costs(Costs(kinds={}, sent=Sent(version=1e8, delta=2e7)), sent)
    assert seen.sent == Sent(version=2e8, delta=2e7)
    assert seen.crossing({"a", "b"}) == pytest.approx(0.25)
    assert seen.crossing({"a", "b"}, whole=True) == pytest.approx(2.05)
    used = cluster.of_devices({"fast-0", "slow-1", "slow-2"})
    assert [(group.kind, group.count) for group in used.devices] == [("fast", 1), ("slow", 2)]
    assert (cluster.price_per_hour, used.price_per_hour) == (9.0, 5.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('site = "b"', 'site = "c"', "links: one is between 'a' and 'b', but devices have the"),
        ('site = "b"', "", "devices: there are links between sites, but a group has no site"),
        ('["b", "a"]', '["b", "b"]', "links: one is between 'b', but devices have the sites"),
        ("0.8", "0", "links.0.gbit_per_second: must be greater than or equal to 1e-06"),
        (
            "[[links]]",
            '[[links]]\nbetween = ["a", "b"]\ngbit_per_second = 1\n[[links]]',
            "links: one is between 'a' and 'b', but there are two",
        ),
        (
            "[[links]]",
            '[[devices]]\nkind = "x"\nsite = "c"\ncount = 1\n[[links]]',
            "links: none is between 'a' and 'c'",
        ),
    ],
)
def test_wrong_links_are_refused_in_one_line(old, new, message, tmp_path):
    check_refused(LINKED.replace(old, new, 1), message, tmp_path)
