"""Capture and replay: the tensor operations of a computation, recorded once and run again on other inputs."""
