"""The tables of docs/results.md: what is measured, and how it is written down (``make tables``)."""
