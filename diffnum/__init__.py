"""Numerics of diffusion models: schedules, grids, paths, solvers and oracles as pure functions."""
