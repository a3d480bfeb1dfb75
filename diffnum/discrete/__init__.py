"""Diffusion of tokens: bounds of the likelihood and laws whose denoiser is known in `diffnum.discrete.elbo`."""
