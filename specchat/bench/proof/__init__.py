"""Checks that speculation changes the speed and nothing else."""
