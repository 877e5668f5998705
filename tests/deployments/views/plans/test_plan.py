"""`digen plan`: its table, its JSON, the config it prints, and wrong input in one line."""

import json
import re
import tomllib
from collections import Counter
from contextlib import nullcontext
from itertools import accumulate

import pytest
from PIL import Image
from rich.console import Console

from deployments.cli import run
from deployments.operation.workers import workers_of
from deployments.shipped import find_cluster
from deployments.views.plans import fleet
from deployments.views.plans.plan import plan
from digen_core.config.run import RunConfig
from digen_core.planning.clusters.cluster import load_cluster
from digen_core.trace.gaps import CAUSES
from support.planning import counted_once, simulated_once

__all__ = ["counted_once", "simulated_once"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("counted_once", "simulated_once")]

SMALL = """
[rollout]
prompts_per_iteration = 4
group_size = 4
fragment_size = 2
num_steps = 4
[train]
pack_size = 4
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


def plans_of(capsys, *arguments):
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plans_are_ordered_and_add_up(small, capsys):
    plans = plans_of(capsys, small, "--cluster", "16x-mixed")
    seconds = [own["seconds"] for own in plans]
    assert seconds == sorted(seconds)
    for own in plans:
        assert own["rollout"] + own["trainers"] == 16
        assert own["samples_per_second"] == pytest.approx(16 / own["seconds"])
        # 8 devices of 3.0 and 8 of 1.6 an hour; 8 of 700 and 8 of 400 W.
        hours = own["seconds"] / 3600 / 16 * 1000
        assert own["cost_per_1000_samples"] == pytest.approx(36.8 * hours)
        # Those that wait take 15%; switches are counted as work.
        assert 0.15 * 8.8 * hours < own["kwh_per_1000_samples"] < 8.8 * hours
        assert list(own["idle"]) == list(CAUSES)
        assert 0 <= sum(own["idle"].values()) < 1


def test_the_printed_config_is_one_that_trains_so(small, capsys):
    assert run(["plan", small, "--cluster", "2-cores"]) == 0
    out = capsys.readouterr().out
    tree = tomllib.loads(out[out.index("[rollout]") :])
    config = RunConfig.model_validate(tree | {"rollout": {"group_size": 4, **tree["rollout"]}})
    best = plans_of(capsys, small, "--cluster", "2-cores")[0]
    assert config.schedule.layout == best["layout"]
    assert config.rollout.fragment_size == best["fragment_size"]
    assert config.cluster.rollout_workers + config.cluster.trainer_workers == 2


def test_a_plan_of_batches_prints_them(small, capsys):
    here = (small, "--cluster", "2-cores", "--rollout.fragment-size", "1")
    batched = (*here, "--rollout.batch-size", "3")
    best = plans_of(capsys, *batched)[0]
    assert best["fragment_size"] <= 2, "a batch of three holds no fragment of four"
    assert best["batch_size"] in (2, 3)
    assert run(["plan", *batched]) == 0
    assert f"\nbatch_size = {best['batch_size']}\n" in capsys.readouterr().out
    assert plans_of(capsys, *here)[0]["batch_size"] is None


@pytest.mark.ci
def test_who_asks_the_reference_policy_is_planned_where_it_is_asked(small, capsys):
    here = (small, "--cluster", "32x-h100")
    assert {own["reference"] for own in plans_of(capsys, *here)} == {None}
    asked = (*here, "--algorithm.kl-coefficient", "0.1", "--algorithm.trained-fraction", "0.5")
    said = {
        who: plans_of(capsys, *asked, "--schedule.reference", who)[0]
        for who in ("training", "generation")
    }
    plans = plans_of(capsys, *asked)
    assert {own["reference"] for own in plans} == {"training", "generation"}
    seconds = min(own["seconds"] for own in said.values())
    assert plans[0]["seconds"] == pytest.approx(seconds, rel=0.006)  # what pays half a percent
    for who, own in said.items():
        assert own["reference"] == who
    assert run(["plan", *asked]) == 0
    table = capsys.readouterr().out
    assert "*: who generates a sample asks the reference policy" in table
    assert f'reference = "{plans[0]["reference"]}"' in table


def test_stale_groups_only_with_leave(small, capsys):
    stale = ["--schedule.layout", "auto", "--schedule.max-stale-share", "0.5"]
    without = plans_of(capsys, small, "--cluster", "16x-mixed")
    assert not any(own["stale_share"] for own in without)
    allowed = plans_of(capsys, small, "--cluster", "16x-mixed", *stale)
    assert "tcss" in {own["layout"] for own in allowed}


def test_a_profile_wins_over_the_cluster(small, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(
        '{"kinds": {"core": {"step": {"per_item": 10.0}, "pack": {"per_item": 0.001}}}}'
    )
    config = RunConfig.model_validate(tomllib.loads(SMALL) | {"schedule": {"profile": str(path)}})
    # 16 samples of 4 steps of 10 s on at most two devices.
    assert plan(config, find_cluster("2-cores"))[0].seconds >= 320


def test_without_costs_the_plan_is_an_estimate(small, tmp_path, capsys):
    """Twice the arithmetic a second takes half the time of all that is not given in seconds."""
    sheet = 'devices = [{ kind = "x", count = 2, tflops = %s }]'
    (tmp_path / "slow.toml").write_text(sheet % 0.001)
    (tmp_path / "fast.toml").write_text(sheet % 0.002)
    slow = plans_of(capsys, small, "--cluster", str(tmp_path / "slow.toml"))
    fast = plans_of(capsys, small, "--cluster", str(tmp_path / "fast.toml"))
    assert {own["costs_from"] for own in (*slow, *fast)} == {"data sheets"}
    assert slow[0]["seconds"] == pytest.approx(2 * fast[0]["seconds"])
    assert run(["plan", small, "--cluster", str(tmp_path / "slow.toml")]) == 0
    assert "estimated, not measured" in capsys.readouterr().out


def test_whose_costs_a_plan_has_is_told(small, tmp_path, capsys):
    path, note = tmp_path / "profile.json", "costs are the cluster file's, whatever the config's"
    path.write_text('{"kinds": {"core": {"step": {"per_item": 1}, "pack": {"per_item": 1}}}}')
    asked = [small, "--cluster", "2-cores"]
    measured = [*asked, "--schedule.profile", str(path)]
    for own, costs_from in ((asked, "cluster file"), (measured, "profile")):
        assert plans_of(capsys, *own)[0]["costs_from"] == costs_from
        assert run(["plan", *own]) == 0
        assert (note in capsys.readouterr().out) == (costs_from == "cluster file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--cluster 2-cores", "which config? For example: digen plan"),
        ("CONFIG --cluster 3-cores", "there is no cluster 3-cores; use 16x-mixed, 16x-two-sites"),
        ("CONFIG --cluster no.toml", "cannot read the cluster no.toml: No such file"),
        ("CONFIG --cluster 2-cores --schedule.profile no.json", "cannot read the profile no.json"),
        (
            "CONFIG --cluster 2-cores --schedule.layout tag --schedule.helpers 7",
            "no split of 2 devices has helpers=7; use less of schedule.helpers and schedule.assi",
        ),
        (
            "CONFIG --cluster 16x-mixed --schedule.helpers 14 --schedule.assistants 14",
            "has helpers=14, assistants=14 in layout elastic; use less of schedule.helpers and",
        ),
        ("CONFIG --cluster 2-cores --timeline p.svg", "--timeline is p.svg; use a name with .png"),
        ("CONFIG --cluster 2-cores --timeline no/p.png", "in a folder that is there"),
        (
            "CONFIG --cluster 16x-mixed --objective money --picture p.png --timeline p.png",
            "--timeline and --picture are both p.png",
        ),
        ("CONFIG --cluster 2-cores --fleet --timeline p.png", "of one plan, but --fleet makes"),
        ("CONFIG", "--cluster"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, small, capsys):
    assert run(["plan", *(small if a == "CONFIG" else a for a in arguments.split())]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


CARDS = """
optimizer_step = 0.1
[reference]
step = {{ fixed = 1.0, per_item = 0.1 }}
pack = {{ fixed = 1.0, per_item = 0.1 }}
[[devices]]
kind = "card"
count = 4
capacity = {capacity}
"""


@pytest.fixture
def tiny(small, tiny_flux):
    """A model whose samples are large for it: what a device computes takes the most."""
    return [small, "--model.path", tiny_flux, "--model.height", "128", "--model.width", "128"]


def cards(tmp_path, capacity: float) -> str:
    path = tmp_path / "cards.toml"
    path.write_text(CARDS.format(capacity=capacity))
    return str(path)


def test_sizes_are_those_that_fit(tiny, tmp_path, capsys):
    from deployments.overrides import config_of
    from deployments.views.memory import GB, needs_of

    memory = needs_of(config_of(tiny, "digen plan")).memory
    plans = plans_of(capsys, *tiny, "--cluster", cards(tmp_path, memory.both(1, 1) / GB + 1e-6))
    assert {(own["fragment_size"], own["pack_size"], own["fitted"]) for own in plans} == {
        (1, 1, True)
    }
    best, *_ = plans_of(capsys, *tiny, "--cluster", cards(tmp_path, 80))
    assert best["fragment_size"] > 1
    assert best["pack_size"] > 1


def test_a_device_more_has_nothing_counted_again(tiny, tmp_path, capsys, monkeypatch):
    from deployments.views import memory, size

    found = []

    def noting(view, name):
        count = getattr(view, name)
        monkeypatch.setattr(
            view, name, lambda *asked: found.append((name, *asked[2:])) or count(*asked)
        )

    monkeypatch.setattr(size, "_counted", {})
    noting(memory, "memory_of")
    noting(size, "sizes_of")
    path = tmp_path / "estimated.toml"
    path.write_text('[[devices]]\nkind = "x"\ncount = 3\ngang = 1\ntflops = 0.01\ncapacity = 80\n')
    rows = plans_of(capsys, *tiny, "--cluster", str(path), "--fleet")
    assert [own["devices"] for own in rows] == ["as it is", "+1 x", "-1 x"]
    assert sorted(found) == [("memory_of", 1), ("sizes_of",)]


@pytest.mark.ci
def test_what_does_not_fit_is_one_line_with_what_would(tiny, tmp_path, capsys):
    from deployments.overrides import config_of
    from deployments.views.memory import GB, needs_of

    config = config_of([*tiny, "--train.gradient-checkpointing", "true"], "digen plan")
    room = max(needs_of(config).memory.trainer(1), needs_of(config).memory.rollout(1)) / GB
    assert run(["plan", *tiny, "--cluster", cards(tmp_path, room + 1e-6)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "to train one pair; it fits with train.gradient_checkpointing = true" in err
    assert run(["plan", *tiny, "--cluster", cards(tmp_path, 1)]) == 2
    assert "kind card, of 1 GB, lacks the memory" in (err := capsys.readouterr().err)
    assert err.endswith("use devices with more\n")


@pytest.mark.ci
def test_gangs_are_found_where_one_card_does_not_train(tiny, tmp_path, capsys):
    """The cluster file and the config that the plan prints are those of its gangs."""
    from deployments.overrides import config_of
    from deployments.views.memory import GB, needs_of

    full = [*tiny, "--train.lora", "null"]
    alone = needs_of(config_of(full, "digen plan")).memory
    room = (max(alone.trainer(1), alone.rollout(1)) - 1) / GB
    path = tmp_path / "open.toml"
    path.write_text(f'[[devices]]\nkind = "x"\ncount = 8\ntflops = 0.01\ncapacity = {room}\n')
    assert run(["plan", *full, "--cluster", str(path)]) == 0
    out = capsys.readouterr().out
    tree = tomllib.loads(out[out.index("[rollout]") :])
    assert tree["cluster"]["trainer_gang"] > 1
    config = RunConfig.model_validate(tree | {"rollout": {"group_size": 4, **tree["rollout"]}})
    devices = out[out.index("[[devices]]") : out.index("[rollout]")]
    path.write_text(devices.replace("gang =", f"tflops = 0.01\ncapacity = {room}\ngang ="))
    parallel = [
        *("--parallel.shard_weights", str(config.parallel.shard_weights).lower()),
        *("--parallel.context_parallel", str(config.parallel.context_parallel)),
    ]
    again = plans_of(capsys, *full, *parallel, "--cluster", str(path))
    assert {part["gang"] for own in again for part in own["parts"]} <= {1, 2, 4}
    num_devices = config.cluster.rollout_workers + config.cluster.trainer_workers
    assert again[0]["rollout"] + again[0]["trainers"] == num_devices


ROOM = """
network = {network}
[[devices]]
kind = "larger"
count = 2
hosts = ["a", "b"]
tflops = 1
capacity = {capacity}
[[devices]]
kind = "smaller"
count = 2
hosts = ["c", "d"]
tflops = 0.5
capacity = {capacity}
"""


@pytest.mark.nightly
def test_stages_are_found_where_no_card_of_a_room_holds_the_model(tiny, tmp_path, capsys):
    """The printed config has them, and with leave codecs where the network is slow."""
    from deployments.overrides import config_of
    from deployments.views.memory import GB, needs_of
    from digen_core.models.tiny.pipelines import build_tiny

    build_tiny("flux", size="tiny", seed=0).save_pretrained(tmp_path / "flux")
    full = [*tiny, "--train.lora", "null", "--model.path", str(tmp_path / "flux")]
    alone = needs_of(config_of(full, "digen plan")).memory
    room, path = (alone.trainer(1) - 1) / GB, tmp_path / "room.toml"
    trees = []
    for network, leave in ((10.0, []), (1e-4, ["--codecs"])):
        path.write_text(ROOM.format(network=network, capacity=room))
        assert run(["plan", *full, "--cluster", str(path), *leave]) == 0
        out = capsys.readouterr().out
        assert "stages: the members of each gang" in " ".join(out.split())
        trees.append(tomllib.loads(out[out.index("[rollout]") :]))
    quick, slow = (
        RunConfig.model_validate(tree | {"rollout": {"group_size": 4, **tree["rollout"]}})
        for tree in trees
    )
    assert quick.parallel.stages == quick.cluster.rollout_gang > 1
    assert sum(quick.parallel.stage_blocks) == 4
    assert quick.model.cuts == ()
    ends = set(accumulate(slow.parallel.stage_blocks[:-1]))
    assert {cut.block for cut in slow.model.cuts} <= ends
    assert {cut.backward for cut in slow.model.cuts} == {"int4"}
    assert "larger" in out
    path.write_text(path.read_text() + out[out.index("[[gangs]]") : out.index("[rollout]")])
    gangs = load_cluster(path).gangs
    stages = slow.parallel.stages
    assert [(own.kind, own.members) for own in gangs] == [(f"{stages}-stages", stages)] * len(gangs)
    started = [name for worker in workers_of(load_cluster(path)) for name in worker.names]
    assert len(started) == stages * sum(own.count for own in gangs)
    (best, *_) = plans_of(capsys, *full, "--cluster", str(path))
    assert best["gangs"]
    assert best["cuts"] == [], "only with leave"


def test_a_role_that_memory_leaves_alone_is_said(tiny, tmp_path, capsys):
    from deployments.overrides import config_of
    from deployments.views.memory import GB, needs_of

    memory = needs_of(config_of(tiny, "digen plan")).memory
    assert memory.rollout(1) < memory.trainer(1)
    path = tmp_path / "two.toml"
    small_card = '[[devices]]\nkind = "small"\ncount = 2\ncapacity = '
    path.write_text(f"{CARDS.format(capacity=80)}{small_card}{memory.rollout(1) / GB + 1e-6}\n")
    assert run(["plan", *tiny, "--cluster", str(path)]) == 0
    assert "small: its memory leaves it the role rollout alone" in capsys.readouterr().out
    assert plans_of(capsys, *tiny, "--cluster", str(path))[0]["narrowed"] == {"small": "rollout"}


@pytest.mark.parametrize(("capacity", "own"), [("", 2), ("capacity = 80", 2), ("fits one", 1)])
def test_the_size_of_the_config_is_one_that_is_judged(tiny, tmp_path, capacity, own, monkeypatch):
    """Where memory leaves it."""
    from deployments.overrides import config_of
    from digen_core.planning import cluster_plan as module

    config = config_of(tiny, "digen plan")
    if capacity == "fits one":
        from deployments.views.memory import GB, needs_of

        capacity = f"capacity = {needs_of(config).memory.both(1, 1) / GB + 1e-6}"
    path = tmp_path / "cards.toml"
    path.write_text(CARDS.format(capacity=1).replace("capacity = 1", capacity))
    judged, plan_job = [], module.plan_job
    monkeypatch.setattr(
        module, "plan_job", lambda job, leeway: judged.append(job) or plan_job(job, leeway)
    )
    plan(config, find_cluster(str(path)))
    assert [job.workload.fragment_size for job in judged] == [own]


PRICED = """
reference = { step = { per_item = 0.1 }, pack = { per_item = 0.2 } }
[[devices]]
kind = "fast"
count = 2
speed = 2.0
price_per_hour = 3.0
[[devices]]
kind = "slow"
count = 1
roles = "rollout"
price_per_hour = 1.0
"""


def test_one_device_more_and_one_less(small, tmp_path, capsys):
    cluster = tmp_path / "priced.toml"
    cluster.write_text(PRICED)
    rows = plans_of(capsys, small, "--cluster", str(cluster), "--fleet")
    devices = {row["devices"]: row for row in rows}
    assert set(devices) == {
        "as it is", "+1 fast", "-1 fast", "+1 slow (rollout)", "-1 slow (rollout)",
    }  # fmt: skip
    assert rows[0] == {
        "devices": "as it is",
        **plans_of(capsys, small, "--cluster", str(cluster))[0],
    }
    more, now, fewer = (devices[f"{sign}1 fast"] if sign else rows[0] for sign in ("+", "", "-"))
    assert more["seconds"] < now["seconds"] < fewer["seconds"]
    assert [own["rollout"] + own["trainers"] for own in (more, now, fewer)] == [4, 3, 2]
    hours = more["seconds"] / 3600 / 16 * 1000
    assert more["cost_per_1000_samples"] == pytest.approx((3 * 3.0 + 1.0) * hours)


def test_large_numbers_of_a_plan_are_shown_whole(small, tmp_path, capsys):
    cluster = tmp_path / "dear.toml"
    text = PRICED.replace("price_per_hour = ", "price_per_hour = 1234")
    cluster.write_text(re.sub(r"per_item = (\S+)", r"per_item = \1e5", text))
    for more in ((), ("--fleet",)):
        assert run(["plan", small, "--cluster", str(cluster), *more]) == 0
        assert not re.search(r"\de\+\d", capsys.readouterr().out)


def test_a_device_more_and_less_is_planned_for_at_each_site(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "plan", lambda config, cluster, **_: [cluster])
    groups = [f'[[devices]]\nkind = "h100"\ncount = 2\nsite = "{site}"\n' for site in "ab"]
    (path := tmp_path / "sites.toml").write_text("".join(groups))
    found = fleet.changes(RunConfig(), load_cluster(path))
    counts = {own.what: Counter(device.site for device in own.best.fleet) for own in found}
    assert counts == {
        "as it is": {"a": 2, "b": 2},
        **{"+1 h100 at a": {"a": 3, "b": 2}, "-1 h100 at a": {"a": 1, "b": 2}},
        **{"+1 h100 at b": {"a": 2, "b": 3}, "-1 h100 at b": {"a": 2, "b": 1}},
    }


def test_a_terminal_shows_what_is_planned(small, tmp_path, monkeypatch):
    shown = list[str]()
    status = lambda console, text: shown.append(text) or nullcontext()  # noqa: E731
    monkeypatch.setattr(Console, "status", status)
    cluster = tmp_path / "priced.toml"
    cluster.write_text(PRICED)
    assert run(["plan", small, "--cluster", str(cluster)]) == 0
    assert shown == ["planning"]
    assert run(["plan", small, "--cluster", str(cluster), "--fleet"]) == 0
    assert shown[1:4] == ["planning", "planning for +1 fast", "planning for -1 fast"]


def test_of_groups_that_differ_in_price_the_cheapest_grows_and_the_dearest_shrinks(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(fleet, "plan", lambda config, cluster, **_: [cluster])
    groups = [
        f'[[devices]]\nkind = "h100"\ncount = 2\nprice_per_hour = {own}\n' for own in (3, 2, 4)
    ]
    (path := tmp_path / "prices.toml").write_text("".join(groups))
    found = fleet.changes(RunConfig(), load_cluster(path))
    prices = {own.what: own.best.price_per_hour for own in found}
    assert prices == {"as it is": 18, "+1 h100": 20, "-1 h100": 14}


def test_the_last_device_of_a_site_may_go_with_its_links(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "plan", lambda config, cluster, **_: [cluster])
    groups = [
        f'[[devices]]\nkind = "{kind}"\ncount = {count}\nsite = "{site}"\n'
        for kind, count, site in (("h100", 2, "a"), ("l40s", 1, "b"))
    ]
    link = '[[links]]\nbetween = ["a", "b"]\ngbit_per_second = 1.0\n'
    (path := tmp_path / "sites.toml").write_text("".join([*groups, link]))
    found = {own.what: own.best for own in fleet.changes(RunConfig(), load_cluster(path))}
    assert (len(found["+1 l40s at b"].fleet), len(found["+1 l40s at b"].links)) == (4, 1)
    assert (len(found["-1 l40s at b"].fleet), found["-1 l40s at b"].links) == (2, ())


def test_the_table_of_one_device_more_says_what_is_gained(small, tmp_path, capsys):
    cluster = tmp_path / "priced.toml"
    cluster.write_text(PRICED)
    assert run(["plan", small, "--cluster", str(cluster), "--fleet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (now,) = [line.split() for line in lines if line.startswith("as it is")]
    assert (now[-3], now[-1]) == ("+0.0%", "+0.0%")
    (more,) = [line.split() for line in lines if line.startswith("+1 fast")]
    assert float(more[-3].rstrip("%")) > 10


TWO_KINDS = PRICED.replace("price_per_hour = 3.0", "price_per_hour = 3.0\nwatts = 500")


@pytest.fixture
def priced(tmp_path):
    path = tmp_path / "priced.toml"
    path.write_text(TWO_KINDS)
    return str(path)


def test_the_cheapest_plan_comes_first_and_leaves_devices_out(small, priced, capsys):
    fastest, *_ = plans_of(capsys, small, "--cluster", priced)
    best, *others = plans_of(capsys, small, "--cluster", priced, "--objective", "money")
    assert best["cost_per_1000_samples"] < fastest["cost_per_1000_samples"]
    seconds = [own["seconds"] for own in others]
    costs = [own["cost_per_1000_samples"] for own in others]
    assert seconds == sorted(seconds)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] > best["cost_per_1000_samples"]
    used = sum(part["count"] for part in best["parts"])
    assert used + sum(best["left_out"].values()) == 3
    assert best["left_out"]


def test_the_cheapest_plan_is_as_fast_as_is_asked_for(small, priced, capsys):
    fastest, *_ = plans_of(capsys, small, "--cluster", priced)
    same = plans_of(capsys, small, "--cluster", priced, "--objective", "money", "--within", "0")
    assert [own["seconds"] for own in same] == [fastest["seconds"]]


def test_the_table_of_undominated_plans_and_the_devices(small, priced, tmp_path, capsys):
    picture = tmp_path / "plans.png"
    asked = ["--cluster", priced, "--objective", "money"]
    best, *others = plans_of(capsys, small, *asked)
    assert run(["plan", small, *asked, "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    rows = out[out.index("undominated:") : out.index("idle share")].splitlines()
    (marked,) = [row for row in rows if row.rstrip().endswith(" best")]
    assert f"{best['cost_per_1000_samples']:.3g}" in marked.split()
    assert len([row for row in rows if " fast " in row or " slow " in row]) == 1 + len(others)
    for what, number in best["left_out"].items():
        assert f"{number} {what}" in out[out.index("left out") :]
    tree = tomllib.loads(out[out.index("[[devices]]") : out.index("devices without a capacity")])
    assert sum(group["count"] for group in tree["devices"]) == best["rollout"] + best["trainers"]
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert min(image.size) > 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--cluster PRICED --objective speed", "speed"),
        ("--cluster PRICED --objective energy", "does not say the watts of kind slow"),
        ("--cluster PRICED --within 0.03", "--within is 0.03: how much slower than the fastest"),
        ("--cluster PRICED --objective money --within -1", "--within is -1.0; use a share of 0 or"),
        ("--cluster PRICED --objective money --within nan", "--within is nan; use a share of 0 or"),
        ("--cluster PRICED --objective money --fleet", "--objective is money, but --fleet says"),
        ("--cluster PRICED --picture a.png", "--picture is a.png: of what plans take beside"),
        ("--cluster PRICED --objective money --picture a.jpg", "--picture is a.jpg; use a name"),
        ("--cluster PRICED --objective money --picture no/a.png", "in a folder that is there"),
    ],
)
def test_wrong_objectives_are_one_line(arguments, message, small, priced, capsys):
    assert run(["plan", small, *(priced if a == "PRICED" else a for a in arguments.split())]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
