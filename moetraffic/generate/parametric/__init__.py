"""Traffic model of any size: course, movement and rows, fitted, sampled, stored."""
