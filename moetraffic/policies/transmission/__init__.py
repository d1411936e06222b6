"""Policies for the order and the paths of transmissions on a packet network."""
