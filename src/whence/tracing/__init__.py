"""What a forward pass computes: the tracer, the table of operations, kinds, nodes, axes, attention, residuals."""
