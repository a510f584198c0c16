"""Idleness in the portal: the policy, and real heartbeats in simulated time with the sweep after each."""
