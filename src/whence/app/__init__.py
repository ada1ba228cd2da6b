"""The web page: explanations of a model in a browser, computed through the public API."""
