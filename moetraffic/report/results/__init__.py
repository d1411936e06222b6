"""Tables, charts and plain data of each kind of result."""
