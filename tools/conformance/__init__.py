"""The conformance matrix: every method on a tiny model of every family, written to docs/architectures.md."""
