"""Questions, captions and objects of digit scenes whose right explanation is known, and models trained on them.

Run from the directory `training`: `python -m relations.vqa`, `python -m relations.clip`, `python -m relations.detr`.
"""
