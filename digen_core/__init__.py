"""The core library: models, algorithms, control. Knows no orchestrator."""

import os
from typing import Final

NO_TELEMETRY: Final = {
    "DO_NOT_TRACK": "true",  # Prefect, and whatever heeds it
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime, which diffusers loads: it reports to Microsoft
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""Variables by which libraries do not report to their makers what is done with them. Without a
network each start would also wait for that."""

for _name, _value in NO_TELEMETRY.items():  # before any of them is imported
    os.environ.setdefault(_name, _value)
