"""The HDF5 file format of a trace: writing it, and reading it without trust."""
