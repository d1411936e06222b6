"""Published studies of training's traffic, computed again: a file a study."""
