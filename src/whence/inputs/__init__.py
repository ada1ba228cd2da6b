"""Raw inputs to tensors, and back: one reader per modality, each of which returns a :class:`Sample`."""
