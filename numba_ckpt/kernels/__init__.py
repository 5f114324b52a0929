"""Floor 2: array operations, one per file: host loop, CUDA kernel and launcher on one screen."""
