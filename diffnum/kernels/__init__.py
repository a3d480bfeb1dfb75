"""Transition kernels of diffusion processes: Gaussian in `diffnum.kernels.gaussian`."""
