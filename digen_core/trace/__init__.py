"""What a schedule did: spans on disk, idle gaps and their causes, pictures, traces, metrics."""
