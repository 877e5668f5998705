"""What the Dask operator takes, by its own schema."""

from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

CRDS: Final = files("dask_kubernetes") / ("operator/deployment/helm/dask-kubernetes-operator/crds")


def closed(schema: Any, *, top: bool = True) -> Any:
    """Return a schema that refuses keys that it does not name, as Kubernetes drops them."""
    if isinstance(schema, list):
        return [closed(item, top=False) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value, top=False) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        every_resource: dict[str, Any] = (
            {"apiVersion": {}, "kind": {}, "metadata": {}} if top else {}
        )
        result["properties"] = every_resource | result["properties"]
        result.setdefault("additionalProperties", False)
    return result


@cache
def schema_of(kind: str) -> Any:
    """What the operator takes of a kind; its file takes a second to read."""
    crd = yaml.safe_load((CRDS / f"{kind.lower()}.yaml").read_text())
    return closed(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
