"""Floor 8: traces in, numbers and pictures out; what the command line does."""
