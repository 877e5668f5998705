# digen with all that a run or a worker needs; docs/install.md says how it is built and used.
FROM python:3.12-slim

# A compiler, for model.compile and Triton; nothing else needs it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# Packages change less often than digen does, so they are a layer of their own.
WORKDIR /opt/digen
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY digen_core digen_core
COPY tasks tasks
COPY flows flows
COPY deployments deployments
RUN pip install --no-cache-dir -c constraints.txt .

# No telemetry: each start would wait for it where there is no network.
ENV PREFECT_SERVER_ANALYTICS_ENABLED=false \
    DO_NOT_TRACK=true \
    MLFLOW_DISABLE_TELEMETRY=true \
    HF_HUB_DISABLE_TELEMETRY=1 \
    ORT_DISABLE_TELEMETRY=1

# Runs are in the folder that is mounted here. No entry point: clusters start other programs, too.
WORKDIR /work
CMD ["digen"]
