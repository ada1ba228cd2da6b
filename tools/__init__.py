"""Development tools: they measure, check and document the package, and are no part of it."""
