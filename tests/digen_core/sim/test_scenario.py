"""Scenarios: the shipped ones, their work by hand, and what is wrong with a file."""

from functools import partial

import pytest

from deployments.shipped import SCENARIOS
from digen_core.errors import UserError
from digen_core.sim.bounds import floor_of
from digen_core.sim.scenario import Scenario, load_scenario

SHIPPED = sorted(SCENARIOS.glob("*.toml"))


def test_ten_scenarios_are_shipped():
    assert [path.stem for path in SHIPPED] == ["A", "A2", "B", "B2", "C", "D", "E", "F", "G", "H"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_floor_is_the_recorded_one(path):
    scenario = load_scenario(path)
    assert floor_of(scenario) == pytest.approx(scenario.seconds["floor"], abs=0.05)


def test_work_by_hand(scenario):
    # 4 fragments of 3 (0.5 + 0.5) + 1 s; 4 pairs in 2 packs of 1 + 2 s, or in 4 of 1 + 1 s.
    assert scenario.generation_work == 16.0
    training = partial(scenario.reference.training, scenario.workload, scenario.trained_steps)
    assert (training(scenario.pack_size), training(1)) == (6.0, 8.0)
    assert floor_of(scenario) == 11.0


def test_work_of_parts_that_do_not_fill(scenario):
    # Groups of 3: fragments of 3 (0.5 + 1) + 2 s and of 4 s; 6 pairs in packs of 4 and 2.
    odd = scenario.model_copy(
        update={"group_size": 3, "trained_per_group": 3, "fragment_size": 2, "pack_size": 4}
    )
    assert odd.generation_work == 2 * (6.5 + 4.0)
    training = odd.reference.training(odd.workload, odd.trained_steps, odd.pack_size)
    assert training == (1 + 4) + (1 + 2)


def test_groups_cost_what_they_are_said_to_in_turn(scenario):
    """1, 1, 4 in turn for 4 groups are 1, 1, 4, 1: in their mean of 7/4."""
    mixed = scenario.model_copy(update={"prompts": 4, "group_costs": (1.0, 1.0, 4.0)})
    assert mixed.workload.group_costs == pytest.approx((4 / 7, 4 / 7, 16 / 7, 4 / 7))
    even = scenario.model_copy(update={"group_costs": (3.0, 3.0)})
    assert even.workload.group_costs == scenario.workload.group_costs == ()


def test_groups_have_the_steps_that_they_are_said_to_in_turn(scenario):
    """Of 3 steps one is trained: of as few as two one is, too."""
    mixed = scenario.model_copy(update={"prompts": 4, "group_steps": (2, 3, 3)})
    assert mixed.workload.group_steps == (2, 3, 3, 2)
    assert mixed.workload.group_trained == (1, 1, 1, 1)
    assert mixed.workload.mean_steps == 2.5
    assert mixed.generation_work == 4 * 2 * (2.5 + 1)
    assert scenario.workload.group_steps == scenario.workload.group_trained == ()


def of_kinds(scenario, **kinds):
    devices = sum(kind["count"] for kind in kinds.values())
    return Scenario.model_validate(
        scenario.model_dump() | {"devices": devices, "kinds": kinds},
    )


@pytest.mark.parametrize(("split", "generating"), [(2, "ss"), (3, "sss"), (4, "sssf")])
def test_those_that_train_worse_generate(scenario, split, generating):
    mixed = of_kinds(scenario, fast={"count": 2, "pair": 0.5}, slow={"count": 3})
    devices = mixed.cluster(split)
    assert "".join(device.kind[0] for device in devices[:split]) == generating
    names = [*(f"rollout-{n}" for n in range(split)), *(f"trainer-{n}" for n in range(5 - split))]
    assert [device.name for device in devices] == names
    costs = mixed.costs(split).kinds
    assert (costs["fast"].pack(2), costs["slow"].pack(2)) == (1 + 2 * 0.5, 1 + 2)
    assert costs["fast"].step(1) == costs["slow"].step(1) == 1.0


def test_the_floor_of_unequal_devices(scenario):
    # Twice as fast at all: as 8 devices.
    fast = {"count": 3, "generation": 0.5, "pack": 0.5, "pair": 0.5}
    assert floor_of(of_kinds(scenario, fast=fast, slow={"count": 2})) == pytest.approx(22 / 8)
    # The fast ones train in 2 packs of 2 s and generate in what is left: 20 s on four devices.
    mixed = of_kinds(scenario, fast={"count": 2, "pair": 0.5}, slow={"count": 2})
    assert floor_of(mixed) == pytest.approx(20 / 4)


def test_kinds_are_all_devices(scenario):
    with pytest.raises(ValueError, match="kinds have 3 devices, but devices is 2"):
        Scenario.model_validate(scenario.model_dump() | {"kinds": {"fast": {"count": 3}}})


def test_colocated_devices_are_those_of_the_inventory(scenario):
    mixed = of_kinds(scenario, fast={"count": 1, "pair": 0.5}, slow={"count": 1})
    costs = mixed.costs(None)
    assert [device.kind for device in mixed.cluster(None)] == ["fast", "slow"] == [*costs.kinds]
    assert all(device.roles == {"rollout", "trainer"} for device in mixed.cluster(None))
    assert {device.kind for device in scenario.cluster(None)} == {"default"}
    assert (costs.switch_to_rollout, costs.switch_to_trainer) == (3.0, 3.0)
    assert (mixed.costs(1).switch_to_rollout, mixed.costs(1).switch_to_trainer) == (1.0, 1.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("devices = 1", "devices: must be greater than or equal to 2 (got 1)"),
        ("pack_sise = 4", "unknown key pack_sise; did you mean pack_size?"),
        ("trained_steps = 41", "trained_steps is 41, but steps is only 40"),
        ("trained_per_group = 17", "trained_per_group is 17, but group_size is only 16"),
        ("group_steps = [41]", "group_steps has 41; use at most steps (40), and as many that one"),
        ("group_steps = [1]", "group_steps has 1; use at most steps (40), and as many that one is"),
        ("push = 'soon'", "push: must be a valid number"),
        ("devices = true", "devices: must be a number (got True)"),
        ("sent = {version = 1e9}", "sent has bytes, but no links have to carry them; give links"),
        ("push = 1e15", "push: must be at most 31536000: these are the seconds of a year"),
        ("d1 = 1e-320", "d1: must be greater than or equal to 1e-09"),
        ("c = 1e-10", "c: must be greater than or equal to 1e-09 (got 1e-10)"),
        ("group_costs = [1, 1e300]", "group_costs.1: must be less than or equal to 1000000"),
        (
            "kinds = {x = {count = 16, pair = 1e300}}",
            "kinds.x.pair: must be less than or equal to 1000000 (got 1e+300)",
        ),
        (
            "kinds = {x = {count = 8, site = 'a'}, y = {count = 8, site = 'b'}}\n"
            "links = [{between = ['a', 'b'], bytes_per_second = 1e-300}]",
            "bytes_per_second is 1e-300; use 1 to 1e+18",
        ),
        ("jitter = nan", "jitter: must be a finite number (got nan)"),
        ("prompts = ", "is not valid TOML"),
    ],
)
def test_a_wrong_scenario_is_refused(change, message, tmp_path):
    key = change.partition(" ")[0]
    lines = (SCENARIOS / "D.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{key} =")]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join([change, *kept]))
    with pytest.raises(UserError) as error:
        load_scenario(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_key_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("devices = 4")
    with pytest.raises(UserError, match="prompts is missing; group_size is missing"):
        load_scenario(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the scenario .*no\.toml: No such file"):
        load_scenario(tmp_path / "no.toml")


def test_two_links_between_the_same_sites_are_refused(tmp_path):
    text = (SCENARIOS / "D.toml").read_text().split("\n[seconds]")[0]
    for name, site in (("near", "a"), ("far", "b")):
        text += f'\n[kinds.{name}]\ncount = 8\nsite = "{site}"\n'
    for between in ('["a", "b"]', '["b", "a"]'):
        load_scenario(_file(tmp_path, text))
        text += f"\n[[links]]\nbetween = {between}\nbytes_per_second = 1e6\n"
    with pytest.raises(UserError, match=r"links: \['a', 'b'\] are linked more than once"):
        load_scenario(_file(tmp_path, text))


def test_lists_of_a_file_are_refused_in_plain_words(tmp_path):
    link = "\nbytes_per_second = 1e6\nbetween = "
    for said, words in (
        ("[links]" + link + '["a", "b"]', "links: must be a list"),
        ("[[links]]" + link + '["a", "b", "c"]', "links.0.between: must have 2 or fewer values"),
    ):
        path = _file(tmp_path, said)
        with pytest.raises(UserError) as error:
            load_scenario(path)
        assert words in str(error.value)
        assert "uple" not in str(error.value)


def _file(folder, text):
    path = folder / "own.toml"
    path.write_text(text)
    return path
