"""Questions, captions and objects of digit scenes whose right explanation is known, and models trained on them.

Run from the root of the repository: `python -m tools.training.relations.vqa`, and `clip` or `detr` in its place.
"""
