"""Model families: an adapter each, and how they are loaded, trained, checked and exported."""
