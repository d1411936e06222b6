"""Launch ranks on one host, and name the one that caused a failure."""
