"""Records of a rank on their way to disk: journal, encoder, committer process."""
