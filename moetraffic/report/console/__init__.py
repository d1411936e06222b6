"""Terminal output, command-line options and configuration files of the commands."""
