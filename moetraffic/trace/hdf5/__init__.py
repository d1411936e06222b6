"""Write trace files in the HDF5 format, and read them from untrusted sources."""
