"""How digen is started: command line, clusters, deployments, committed configs."""
