"""Tests of the rig itself and of the bundle that goes into every container."""
