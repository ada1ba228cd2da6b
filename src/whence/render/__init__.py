"""Pictures of explanations. Every renderer takes cards (:mod:`whence.view`) and nothing else."""
