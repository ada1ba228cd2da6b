"""What operations are as functions, whatever torch calls they are written with: norms, softmax, activations, sums."""
