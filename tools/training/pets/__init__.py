"""Real models trained further on photographs of pets: an image-text pair and a detector."""
