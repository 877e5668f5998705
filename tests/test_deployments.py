"""What prefect.yaml registers: flows that load, forms with help, and what they refuse."""

from pathlib import Path

import pytest
import yaml
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from digen_core.config import ConfigError
from digen_core.config_keys import known_keys

TREE = yaml.safe_load((Path(__file__).parents[1] / "deployments" / "prefect.yaml").read_text())
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
    with pytest.raises(ConfigError) as error:
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
