"""What several tests share: small models, clusters, servers and runs."""
