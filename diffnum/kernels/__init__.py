"""Transition kernels: Gaussian in `diffnum.kernels.gaussian`, of tokens in `diffnum.kernels.categorical`."""
