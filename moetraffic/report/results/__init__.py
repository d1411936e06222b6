"""Tables and charts of each kind of result."""
