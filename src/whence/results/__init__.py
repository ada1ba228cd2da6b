"""The results of an explanation: scores, arithmetic, the user's input, files. It does not depend on models."""
