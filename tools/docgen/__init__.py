"""The documentation: its site, and the parts of its pages that are generated."""
