"""Plan of a replay: the operations that each rank issues, in issue order."""
