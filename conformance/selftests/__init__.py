"""What the suite is worth: the wrong kernels it rejects, and the correct ones it does not."""
