"""A card as a torch device with Triton kernels."""
