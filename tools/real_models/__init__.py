"""Real pretrained models that come inside ordinary packages, converted to HuggingFace directories."""
