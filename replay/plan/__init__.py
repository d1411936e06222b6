"""The plan of a replay: which operations each rank issues, in which order."""
