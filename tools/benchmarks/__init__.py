"""What explanations cost: time and memory, in units of one plain forward + backward."""
