"""Hashes of every method on every tiny model, to show that a change leaves all numbers bit for bit as they were."""
