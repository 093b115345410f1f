"""Models and trained drafters on this machine and in the hub: find, fetch, check, pair, judge what fits. Torch-free."""
