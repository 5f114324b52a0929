"""Attention plumbing: backends, groups, CUDA-graph support, metadata of each step, fast prefill, multimodal ranges."""

__all__: list[str] = []
