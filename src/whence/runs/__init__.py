"""One forward pass of a model and the backward passes that a method asks of it. It knows no equation."""
