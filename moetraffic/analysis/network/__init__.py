"""Network statistics of an exchange: host tiers, flows, packets, trace complexity."""
