import pytest


@pytest.fixture(autouse=True)
def small_models_as_large_ones(rows_of_small_models_are_left_out):
    """The published models are small here, and large in use: rows of zeros are left out."""
