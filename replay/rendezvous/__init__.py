"""Rendezvous of the ranks: store, handshake, failure reports and root cause."""
