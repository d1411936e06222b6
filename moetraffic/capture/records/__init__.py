"""Transport of records to disk: journal, encoder and committer process."""
