"""Which versions of Python, torch and transformers Whence works with, found by running (`make matrix`)."""
