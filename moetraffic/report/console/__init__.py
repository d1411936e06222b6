"""Terminal output, options and configuration files of the commands."""
