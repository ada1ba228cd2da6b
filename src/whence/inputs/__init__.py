"""Raw inputs to tensors, and back: one reader per kind of input. A reader gives a :class:`Sample`."""
