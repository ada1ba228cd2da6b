"""The families, a file for each group. Importing them adds them to the matrix."""

from conformance.families import text  # noqa: F401
