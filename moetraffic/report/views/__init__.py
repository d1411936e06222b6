"""Views of results: the answer of a verb, and its charts."""
