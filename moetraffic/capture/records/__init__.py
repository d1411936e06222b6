"""Transfer of recorded calls from the training process to segments on disk."""
