"""Rendezvous of the ranks of a replay: store, handshake, root cause of failures."""
