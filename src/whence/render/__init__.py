"""Renderers: HTML, figures, terminal, LaTeX. Each takes cards of plain values (``view_model``) and nothing else."""
