"""Propagation of relevance through one operation: rules, rulebooks, the ledger. It does not depend on any model."""
