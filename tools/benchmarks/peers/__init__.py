"""Whence beside other libraries of explanations: the same weights, input and target, in the same process."""
