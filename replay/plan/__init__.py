"""Operations of a replay, and the program of each rank; without torch."""
