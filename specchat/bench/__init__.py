"""Measuring and proving: workloads, runner, report, peers, and the check that a user runs on their own machine."""
