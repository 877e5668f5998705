"""How a run begins with its costs, learns them, and resolves its layout."""

import json
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest

from deployments.shipped import find_config
from digen_core.config.load import load_config
from digen_core.config.model import ModelConfig
from digen_core.config.rollout import RolloutConfig
from digen_core.config.run import NO_LIMITS, RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.control.costs import Costs, DeviceCosts, Linear, Sent
from digen_core.control.protocol import CostsUpdated, Device
from digen_core.control.schedule import Mixing
from digen_core.errors import UserError
from digen_core.planning.profile import Measured, load_profile
from digen_core.records import Span
from flows.runtime import scheduling
from flows.runtime.observers import Observer, watching
from flows.runtime.scheduling import (
    arithmetic_of,
    count_arithmetic,
    learn_costs,
    notify_of_prices,
    resolve_layout,
    start_profile,
)
from support.contexts import run_context

BOTH = frozenset({"rollout", "trainer"})
FREE = [Device("worker-0", BOTH), Device("worker-1", BOTH)]
SPLIT = [Device("rollout-0", frozenset({"rollout"})), Device("trainer-0", frozenset({"trainer"}))]
STEP, PACK = Linear(fixed=0.5, per_item=0.25), Linear(fixed=1.0, per_item=0.5)
COSTS = Costs(kinds={"default": DeviceCosts(step=STEP, pack=PACK)})


def config(**schedule) -> RunConfig:
    return RunConfig.model_validate(
        {
            "rollout": {
                "prompts_per_iteration": 2,
                "group_size": 2,
                "fragment_size": 2,
                "num_steps": 3,
            },
            "algorithm": {"window": (1, 0, 1)},
            "train": {"pack_size": 2},
            "schedule": schedule,
        }
    )


@pytest.fixture
def run(tmp_path):
    return run_context(tmp_path, config(layout="tsp"), SPLIT)


def schedule_of(run):
    return json.loads((run.run_dir / "schedule.json").read_text())


def test_a_profile_says_what_a_version_was_seen_to_have(tmp_path):
    """Of one that crossed a link as a delta; all else that crosses is counted."""
    path = tmp_path / "profile.json"
    path.write_text(
        COSTS.model_copy(update={"sent": Sent(version=9.0, delta=25.0)}).model_dump_json()
    )
    sites = [replace(device, site=site) for device, site in zip(SPLIT, "ab", strict=True)]
    run = run_context(tmp_path, config(layout="tsp", profile=str(path)), sites)
    start_profile(run, {})
    found = run.progress.known_costs.sent
    assert found.delta == 25.0
    assert found.version == found.gradient_sum > found.transition > 0


def test_auto_takes_the_fastest_and_changes_nothing_else():
    # One group and free switches: nothing overlaps, and two devices are faster than one.
    one = {"prompts_per_iteration": 1, "group_size": 4, "fragment_size": 2, "num_steps": 3}
    given = config(layout="auto").model_copy(update={"rollout": RolloutConfig(**one)})
    chosen, devices = resolve_layout(given, FREE, COSTS)
    assert chosen.schedule.layout == "colocated-strong"
    assert devices == FREE
    assert chosen.model_copy(update={"schedule": given.schedule}) == given


def test_auto_names_the_devices_that_there_are():
    _, devices = resolve_layout(config(layout="auto"), FREE, COSTS)
    assert {device.name for device in devices} == {"worker-0", "worker-1"}


def test_auto_splits_where_switches_are_dear():
    dear = COSTS.model_copy(update={"switch_to_trainer": 50.0, "switch_to_rollout": 50.0})
    chosen, devices = resolve_layout(config(layout="auto"), FREE, dear)
    assert chosen.schedule.layout in ("tsp", "gap", "tag", "elastic")
    assert (chosen.schedule.helpers, chosen.schedule.assistants) == (0, 0)
    assert [sorted(device.roles) for device in devices] == [["rollout"], ["trainer"]]


def test_auto_keeps_roles_that_are_given():
    _, devices = resolve_layout(config(layout="auto"), SPLIT, COSTS)
    assert devices == SPLIT


def test_auto_is_stale_only_with_leave():
    dear = COSTS.model_copy(
        update={"push": 20.0, "switch_to_trainer": 50.0, "switch_to_rollout": 50.0}
    )
    on_policy, _ = resolve_layout(config(layout="auto"), SPLIT, dear)
    assert not on_policy.schedule.stale_share
    stale, _ = resolve_layout(config(layout="auto", max_stale_share=0.5), SPLIT, dear)
    assert (stale.schedule.layout, stale.schedule.stale_share) == ("tcss", 0.5)


def test_what_auto_chose_is_a_config_that_a_resumed_run_reads():
    """A bound on clipped stale pairs goes where no group is stale."""
    asked = config(layout="auto", max_stale_share=0.5, max_stale_clipped=0.3)
    dear = COSTS.model_copy(update={"switch_to_rollout": 9.0, "switch_to_trainer": 9.0})
    found = [resolve_layout(asked, SPLIT, costs)[0] for costs in (COSTS, dear)]
    kept = [RunConfig.model_validate_json(chosen.model_dump_json()) for chosen in found]
    assert kept == found
    bounds = [own.schedule.max_stale_clipped for own in kept]
    assert bounds == [0.3 if own.schedule.stale_share else None for own in kept]
    assert set(bounds) == {0.3, None}


@pytest.mark.parametrize(("pack", "who"), [(9.0, "generation"), (0.5, "training")])
def test_auto_has_the_reference_policy_asked_by_who_is_not_waited_for(pack, who):
    """Who trains is waited for where packs are dear, and who generates where they are cheap."""
    kind = next(iter(COSTS.kinds.values()))
    kind = kind.model_copy(update={"pack": Linear(fixed=pack, per_item=pack)})
    costs = COSTS.model_copy(update={"kinds": dict.fromkeys(COSTS.kinds, kind)})
    asked = config(layout="auto", helpers=0, assistants=0).model_copy(
        update={"algorithm": config().algorithm.model_copy(update={"kl_coefficient": 0.1})}
    )
    chosen, _ = resolve_layout(asked, SPLIT, costs)
    assert chosen.who_asks_reference == who
    assert chosen.schedule.reference == who
    for said in ("training", "generation"):
        kept, _ = resolve_layout(asked.asking(said), SPLIT, costs)
        assert kept.schedule.reference == said


def test_help_that_is_asked_for_and_not_there():
    with pytest.raises(UserError, match="no split of 2 devices has"):
        resolve_layout(config(layout="auto", helpers=7), SPLIT, COSTS)


def test_a_run_begins_with_what_was_measured(run):
    start_profile(run, dict(zip(SPLIT, [Measured(step=STEP), Measured(pack=PACK)], strict=True)))
    assert run.progress.known_costs == COSTS
    assert run.progress.step_seconds == 1.0
    # Two fragments of 3 s; the first group is trained meanwhile, the second one in 2 s.
    assert schedule_of(run) == {
        "layout": "tsp",
        "split": [1, 1],
        "helpers": "auto",
        "assistants": "auto",
        "max_stale_share": 0.0,
        "group_order": "listed",
        "cuts_by_cost": False,
        "predicted_seconds": pytest.approx(8.0),
    }


@pytest.mark.parametrize("who", ["training", "generation"])
def test_an_earlier_profile_is_told_for_who_asks_the_reference_policy_now(tmp_path, who):
    """Of 3 steps one is trained: a velocity is 3/4 of a step that asks, and all of one that not."""
    costs = COSTS.model_copy(update={"reference": who})
    (tmp_path / "profile.json").write_text(costs.model_dump_json())
    given = config(layout="tsp", profile=str(tmp_path / "profile.json")).model_copy(
        update={"algorithm": config().algorithm.model_copy(update={"kl_coefficient": 0.1})}
    )
    now = "training" if who == "generation" else "generation"
    run = run_context(tmp_path, given.asking(now), SPLIT)
    start_profile(run, {})
    found = run.progress.known_costs
    assert found.reference == now
    step, pack = found.kinds["default"].step, found.kinds["default"].pack
    if now == "generation":
        assert step(2) == pytest.approx(4 / 3 * STEP(2))
        assert pack(2) == pytest.approx(PACK(2) - STEP(2))
    else:
        assert step(2) == pytest.approx(3 / 4 * STEP(2))
        assert pack(2) == pytest.approx(PACK(2) + 3 / 4 * STEP(2))


def test_a_run_of_several_sizes_begins_though_nobody_generates_yet(tmp_path):
    """It waits for workers; how groups that cost differently are generated is not simulated."""
    sizes = {"path": "some/body", "sizes": ((32, 32, 1), (64, 64, 1))}
    given = config(layout="tsp").model_copy(update={"model": ModelConfig(**sizes)})
    measured = Measured(step=STEP, pack=PACK)
    run = run_context(tmp_path, given, SPLIT)
    start_profile(run, dict.fromkeys(SPLIT, measured))
    assert schedule_of(run)["group_order"] == run.progress.mixing.order
    (tmp_path / "waits").mkdir()
    run = run_context(tmp_path / "waits", given, SPLIT[1:])
    start_profile(run, {SPLIT[1]: measured})
    assert run.progress.mixing == Mixing()
    assert not (run.run_dir / "schedule.json").exists()


def test_a_profile_wins_over_the_measurement(run, tmp_path):
    path = tmp_path / "earlier.json"
    path.write_text(Costs(kinds={"h100": COSTS.kinds["default"]}, push=1.0).model_dump_json())
    run = replace(run, config=config(layout="tsp", profile=str(path)))
    start_profile(run, dict.fromkeys(SPLIT, Measured(step=PACK, pack=STEP)))
    assert run.progress.known_costs == COSTS.model_copy(update={"push": 1.0})
    assert schedule_of(run)["predicted_seconds"] == pytest.approx(9.0)


def test_an_iteration_is_learnt_from_told_and_kept(run):
    start_profile(run, dict.fromkeys(SPLIT, Measured(step=STEP, pack=PACK)))
    # A step of two samples took 2 s instead of 1.
    span = Span(0, "denoise", "denoise", "rollout-0", 0.0, 0.0, 2.0, num_items=2)
    learn_costs(run, [replace(span, first_step=0, end_step=1)])
    told = run.inbox.get_nowait()
    assert told == CostsUpdated(run.progress.known_costs)
    assert told.costs.kinds["default"].step == Linear(fixed=1.0, per_item=0.5)
    assert load_profile(run.run_dir / "profile.json") == told.costs
    assert schedule_of(run)["predicted_seconds"] == pytest.approx(14.0)


def test_bytes_of_a_model_whose_settings_are_not_here_are_left_out_of_predictions(tmp_path):
    given = config(layout="tsp").model_copy(update={"model": ModelConfig(path="some/body")})
    devices = [replace(own, site=site) for own, site in zip(SPLIT, "ab", strict=True)]
    run = run_context(tmp_path, given, devices)
    start_profile(run, dict.fromkeys(devices, Measured(step=STEP, pack=PACK)))
    assert run.progress.known_costs == COSTS
    assert schedule_of(run)["predicted_seconds"] == pytest.approx(8.0)


# --- what devices are worth ---------------------------------------------------------------------

H100 = "NVIDIA H100 80GB HBM3"
CARDS = [Device("a", BOTH, H100), Device("b", BOTH, "NVIDIA L40S x2", 2)]


class Warned(Observer):
    """Notes warnings."""

    def __init__(self):
        self.texts = []

    def on_warning(self, text):
        self.texts.append(text)


def counted(run) -> list[str]:
    """Count a run's arithmetic, wait for it, and return the warnings."""
    watch = Warned()
    with watching(watch):
        count_arithmetic(run)
        for thread in threading.enumerate():
            if thread.name == "count arithmetic":
                thread.join(60)
    return watch.texts


def test_arithmetic_is_of_items_of_mean_cost():
    """Where prompts have sizes of their own, the model's own size is not the mean one."""
    config = load_config(find_config("shapes"))
    alone = arithmetic_of(config)
    half, model = config.model.height // 2, config.model
    sizes = ((model.height, model.width, 1), (half, half, 1))
    both = arithmetic_of(
        config.model_copy(update={"model": model.model_copy(update={"sizes": sizes})})
    )
    assert alone.step > both.step > alone.step / 4
    assert both.pair / alone.pair == pytest.approx(both.step / alone.step, rel=1e-6)
    assert both.decode / alone.decode == pytest.approx(5 / 8, rel=1e-6)  # a mean of pixels


def test_arithmetic_is_counted_once_where_all_peaks_are_known(tmp_path):
    config = load_config(find_config("shapes"), NO_LIMITS)
    run = run_context(tmp_path, config, CARDS)
    assert counted(run) == []
    assert run.progress.arithmetic == arithmetic_of(config)
    run.progress.arithmetic = None
    assert counted(run) == []
    assert run.progress.arithmetic is None
    unknown = run_context(tmp_path, config, [*CARDS, Device("c", BOTH, "cpu")])
    assert counted(unknown) == []
    assert unknown.progress.arithmetic is None


@pytest.mark.parametrize(
    ("model", "is_told"),
    [
        ({"family": "sd3", "guidance_scale": 1.0, "guidance_schedule": ((0.9, 4.0),)}, False),
        ({"family": "sd3", "guidance_scale": 4.5, "guidance_schedule": ((0.9, 2.0),)}, True),
        ({"family": "wan", "guidance_scale": 4.0, "guidance_scale_2": 1.0}, False),
        ({"family": "wan", "guidance_scale": 4.0, "guidance_scale_2": 3.0}, True),
        ({"family": "flux", "guidance_scale": 1.0, "guidance_schedule": ((0.9, 4.0),)}, True),
    ],
)
def test_steps_that_take_half_as_much_as_others_are_not_counted_as_those(
    model, is_told, tmp_path, monkeypatch
):
    config = RunConfig()
    config = config.model_copy(update={"model": config.model.model_copy(update=model)})
    counts = Mock(step_flops=1, pair_flops=2, decode_flops=3)
    monkeypatch.setattr(scheduling, "settings_folder", lambda path: tmp_path)
    monkeypatch.setattr(scheduling, "sizes_of", lambda config, folder: counts)
    monkeypatch.setattr(scheduling, "of_samples", lambda counts, config: counts)
    if is_told:
        assert arithmetic_of(config).step == 1
    else:
        with pytest.raises(UserError, match="some steps have guidance"):
            arithmetic_of(config)


def test_what_cannot_be_counted_is_a_warning(tmp_path, monkeypatch):
    def fail(config):
        raise RuntimeError("no such kernel on the meta device")

    monkeypatch.setattr(scheduling, "arithmetic_of", fail)
    run = run_context(tmp_path, load_config(find_config("shapes")), CARDS)
    assert counted(run) == [
        "what share of their peaks the devices reach is not told: no such kernel on the meta device"
    ]


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ({}, []),
        ({H100: 3.0, "NVIDIA L40S": 1.0}, []),
        (
            {H100: 3.0, "l40s": 1.0},
            [
                "cluster.price_per_hour has no price of NVIDIA L40S, which counts as 3 an hour, "
                "the most that is named",
                "cluster.price_per_hour names l40s, which no device of the run is",
            ],
        ),
    ],
)
def test_prices_that_fit_no_device_are_told_once(prices, said, tmp_path):
    run = run_context(tmp_path, RunConfig(cluster=ClusterConfig(price_per_hour=prices)), CARDS)
    watch = Warned()
    with watching(watch):
        notify_of_prices(run)
        notify_of_prices(run)
    assert watch.texts == said


def test_a_budget_is_looked_at_with_what_was_charged(tmp_path):
    """Devices are charged for while they are there: an hour of two, then one of the cheap ones."""
    cluster = ClusterConfig(price_per_hour={H100: 3.0, "NVIDIA L40S": 1.0})
    run = run_context(tmp_path, RunConfig(cluster=cluster, max_cost=6.5), CARDS)
    run.progress.charged_until = 0.0
    run.progress.charged(run.price_per_second, 3600.0)
    assert run.progress.spent == pytest.approx(5.0)
    run.fleet.lose(["a"])
    run.progress.charged(run.price_per_second, 3600.0 * 1.5)
    assert run.progress.spent == pytest.approx(6.0)
    assert run.limit_reached is None
    run.progress.charged(run.price_per_second, 3600.0 * 1.8)
    assert run.limit_reached == "max_cost (6.5) is spent"
