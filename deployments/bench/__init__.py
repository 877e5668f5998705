"""Benchmarks: what orchestration costs, and what layouts, packs and algorithms gain."""
