"""Faster training on NVIDIA GPUs: Triton kernels, and the layers' operations made of them."""
