"""What crosses process boundaries and what is written to disk."""
