"""The front door: ``explain``, ``Explainer``, generation and long texts."""
