"""Explanations as the user holds them: results that can be shown, saved and compared, and tables of scores."""
