"""What prefect.yaml registers: flows that load, forms with help, what they refuse, and merge."""

import asyncio
from uuid import uuid4

import pytest
import yaml
from prefect import get_client
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from digen_core.config.keys import known_keys
from digen_core.config.load import config_of_tree
from digen_core.config.merge import TABLES, merge_configs
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from support.paths import ROOT

pytestmark = pytest.mark.slow

TREE = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())
DEPLOYMENTS = {tree["entrypoint"].rpartition(".")[2]: tree for tree in TREE["deployments"]}


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def deployed(request):
    """A deployment, its flow, and the schema of its form."""
    tree = DEPLOYMENTS[request.param]
    flow = load_flow_from_entrypoint(tree["entrypoint"], use_placeholder_flow=False)
    return tree, flow, parameter_schema(flow).model_dump_for_openapi()


def refusal(parameters, schema) -> str:
    """Return what the Prefect server says to the parameters of a run; nothing if it takes them."""
    try:
        validate(parameters, schema, raise_on_error=True, preprocess=True, ignore_required=True)
    except ValidationError as error:
        return str(error)
    return ""


def test_all_four_are_there_with_what_prefect_takes():
    assert set(DEPLOYMENTS) == {"post_train", "evaluate_run", "plan", "bench"}
    assert PrefectYamlModel.model_validate(TREE).deployments
    for name, tree in DEPLOYMENTS.items():
        assert "digen" in tree["tags"]
        assert [schedule["active"] for schedule in tree["schedules"]] == [False]
        queue = tree["work_pool"].get("work_queue_name")
        assert queue == (None if name == "plan" else "cluster")


def test_parameters_fit_the_form_and_the_flow(deployed):
    tree, flow, schema = deployed
    assert refusal(tree["parameters"], schema) == ""
    assert flow.validate_parameters(tree["parameters"])
    assert not schema.get("required") or set(schema["required"]) <= set(tree["parameters"])


def test_every_field_has_help(deployed):
    _, _, schema = deployed
    without = {key for key, field in schema["properties"].items() if not field.get("description")}
    assert not without
    for name, model in schema["definitions"].items():
        for key, field in model.get("properties", {}).items():
            assert "$ref" in field or key == "type" or field.get("description"), (name, key)


@pytest.mark.parametrize(
    ("config", "form", "flow_says"),
    [
        (
            {"rollout": {"group_sise": 8}},
            "'config.rollout'. Failure reason: Additional properties are not allowed ('group_sise'",
            "unknown key rollout.group_sise: did you mean rollout.group_size?",
        ),
        (
            {"num_iterations": 0},
            "'config.num_iterations'. Failure reason: 0 is less than the minimum of 1",
            "num_iterations: must be greater than or equal to 1 (got 0)",
        ),
        (
            {"algorithm": {"clip_range": -1.0}},
            "'config.algorithm'. Failure reason:",
            "algorithm.clip_range: must be greater than 0",
        ),
        ({"rewards": {"shapes": "much"}}, "'config.rewards.shapes'. Failure reason", "'much'"),
        (
            {"schedule": {"layout": "tsp", "max_stale_share": 0.5}},
            "",  # a combination: no schema says it
            "schedule.max_stale_share is 0.5, but layout tsp is on-policy; use tcss or elastic",
        ),
    ],
)
def test_wrong_values_are_refused_by_the_form_and_in_one_line_by_the_run(config, form, flow_says):
    flow = load_flow_from_entrypoint("flows.post_train.post_train", use_placeholder_flow=False)
    refused = refusal({"config": config}, parameter_schema(flow).model_dump_for_openapi())
    assert form in refused
    assert bool(form) == bool(refused)
    with pytest.raises(UserError) as error:
        flow.validate_parameters({"config": config})
    assert str(error.value).startswith("the parameter config: ")
    assert flow_says in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_config_file_takes_the_form_takes():
    schema = parameter_schema(
        load_flow_from_entrypoint("flows.post_train.post_train", use_placeholder_flow=False)
    ).model_dump_for_openapi()
    for config in (
        {"rewards": {"shapes": 1.0, "ocr": {"weight": 0.5}}},
        {"algorithm": {"clip_range": 1e-3}},
        {"algorithm": {"type": "ddpo"}},
        {"train": {"lora": None}},
    ):
        assert refusal({"config": config}, schema) == ""
    assert {key.partition(".")[0] for key in known_keys()} == set(
        schema["definitions"]["RunConfig"]["properties"]
    )


SHAPES = DEPLOYMENTS["post_train"]["parameters"]["config"]


def merged(given: dict) -> RunConfig:
    return config_of_tree(merge_configs(SHAPES, given), "test")


def changed(given: dict) -> dict[str, tuple]:
    """The keys of the deployment's config that another one changes: before and after."""
    before, after = flat(config_of_tree(SHAPES, "test")), flat(merged(given))
    names = {*before, *after}
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def flat(config: RunConfig) -> dict:
    def walk(tree, prefix=""):
        for key, value in tree.items():
            if isinstance(value, dict) and value:
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    return dict(walk(config.model_dump()))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"num_iterations": 4}, {"num_iterations": (110, 4)}),
        ({"max_minutes": None}, {"max_minutes": (6.0, None)}),
        ({"rollout": {"num_steps": 9}}, {"rollout.num_steps": (8, 9)}),
        ({"train": {"lora": {"rank": 4}}}, {"train.lora.rank": (32, 4)}),
        ({"algorithm": {"window": [2, 0, 4]}}, {"algorithm.window": ((4, 0, 7), (2, 0, 4))}),
        ({"algorithm": {"type": "flow_grpo", "clip_range": 0.1}},
         {"algorithm.clip_range": (1e-4, 0.1)}),
        ({"rewards": {"shapes": 0.5}}, {"rewards.shapes.weight": (1.0, 0.5)}),
        ({"rewards": {"shapes": {"pool": "p"}}}, {"rewards.shapes.pool": (None, "p")}),
        ({"cluster": {"reward_workers": {"p": 2}}, "rewards": {"shapes": {"pool": "p"}}},
         {"cluster.reward_workers": ({}, None), "cluster.reward_workers.p": (None, 2),
          "rewards.shapes.pool": (None, "p")}),
    ],
)  # fmt: skip
def test_keys_that_are_given_are_laid_over_the_deployments(given, expected):
    assert changed(given) == expected


def test_another_type_of_algorithm_or_reward_is_taken_as_it_is_given():
    other = merged({"algorithm": {"type": "ddpo"}, "schedule": {"layout": "colocated"}})
    assert other.algorithm == RunConfig.model_validate({"algorithm": {"type": "ddpo"}}).algorithm
    assert other.train.learning_rate == 0.0012
    own = merged({"rewards": {"jpeg_compressibility": 2.0}}).rewards
    assert {name: reward.weight for name, reward in own.items()} == {"jpeg_compressibility": 2.0}
    remote = {"type": "remote", "url": "http://127.0.0.1:1/"}
    assert merged({"rewards": {"shapes": remote}}).rewards["shapes"].weight == 1.0


def test_all_weights_are_trained_where_lora_is_null():
    assert merged({"train": {"lora": None}}).train.lora is None
    assert merged({"train": {"lora": "null"}}).train.lora is None


def test_what_a_form_sends_is_whole():
    """It has all tables, the values of the deployment, defaults, and no field that was cleared."""
    form = config_of_tree(SHAPES, "test").model_dump(mode="json")
    assert form.keys() >= TABLES
    del form["seed"], form["rollout"]["group_size"]  # cleared
    form["rewards"] = {"jpeg_compressibility": 1.0}
    found = config_of_tree(merge_configs(SHAPES | {"seed": 7}, form), "test")
    assert (found.seed, found.rollout.group_size) == (0, RunConfig().rollout.group_size)
    assert list(found.rewards) == ["jpeg_compressibility"]


@pytest.mark.parametrize(
    "given",
    [{"rollout": 3}, {"rewards": {"a b": 1}}, {"algorithm": {"type": "x"}}, {"rolout": {"a": 1}}],
)
def test_what_is_wrong_with_keys_that_are_given_is_told(given):
    with pytest.raises(UserError, match=r"^test: "):
        merged(given)


@pytest.fixture
def flow_run(prefect_backend, monkeypatch):
    """Return a function that makes a flow run of a deployment, and acts as its process."""

    async def make(deployed: dict, given: dict):
        async with get_client() as client:
            flow_id = await client.create_flow_from_name(f"f-{uuid4()}")
            deployment = await client.create_deployment(flow_id, "x", parameters=deployed)
            return await client.create_flow_run_from_deployment(deployment, parameters=given)

    def parameters_of(deployed: dict, given: dict) -> dict:
        run = asyncio.run(make(deployed, given))
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id))
        flow = load_flow_from_entrypoint("flows.post_train.post_train", use_placeholder_flow=False)
        return flow.validate_parameters(run.parameters)

    return parameters_of


def test_a_flow_run_completes_its_config_with_the_deployments(flow_run):
    """On a Prefect server, which hands over what was given, and nothing of the deployment's."""
    config = flow_run({"config": SHAPES}, {"config": {"num_iterations": 4}})["config"]
    assert config == config_of_tree({**SHAPES, "num_iterations": 4}, "test")
    assert flow_run({"config": SHAPES}, {})["config"] == config_of_tree(SHAPES, "test")


def test_a_flow_run_that_resumes_completes_its_config_with_the_runs(flow_run, tmp_path):
    kept = config_of_tree({**SHAPES, "seed": 5, "num_iterations": 20}, "test")
    (tmp_path / "config.json").write_text(kept.model_dump_json())
    resume = {"resume": str(tmp_path)}
    given = {"cluster": {"rollout_workers": 2}}
    found = flow_run({"config": SHAPES}, {**resume, "config": given})["config"]
    assert found == kept.model_copy(
        update={"cluster": kept.cluster.model_copy(update={"rollout_workers": 2})}
    )
    assert flow_run({"config": SHAPES}, resume)["config"] == kept
    with pytest.raises(UserError, match=r"there is no run folder .*missing"):
        flow_run({"config": SHAPES}, {"resume": str(tmp_path / "missing")})
