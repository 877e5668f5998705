"""What a gang of several workers takes: commands inside it, and stages over slow links."""
