"""Attention of Fovea beside that of other libraries on one GPU; bench/peers_gpu.py runs it."""
