"""How relevance is propagated through one operation: rules, rulebooks, the ledger. It knows no model."""
