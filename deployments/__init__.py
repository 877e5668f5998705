"""The ways to start digen: command line, clusters, deployments, committed configs."""
