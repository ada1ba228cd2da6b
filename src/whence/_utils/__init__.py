"""Small helpers that know nothing of Transformers: optional imports, atomic files, type checks, progress."""
