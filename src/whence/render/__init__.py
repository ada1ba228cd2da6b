"""Pictures of explanations. Every renderer takes cards (:mod:`whence.render.view_model`) and nothing else."""
