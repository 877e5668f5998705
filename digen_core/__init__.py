"""The core library: models, algorithms, control. Knows no orchestrator."""
