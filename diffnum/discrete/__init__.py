"""Diffusion of tokens: bounds of the likelihood and laws whose denoiser is known in `elbo`, samplers in `samplers`."""
