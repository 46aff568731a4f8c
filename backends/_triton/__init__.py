"""Kernels in Triton, written once for every device that has Triton; not itself a backend.

Importing this package imports neither torch nor Triton: `xinheng.backends._triton.kernels` does, and has to be imported
after `interpreter.demand` where kernels are to be interpreted.
"""
