"""Tests of `diffnum.discrete`; a package, since `test_samplers` is also the name of another file."""
