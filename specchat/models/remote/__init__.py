"""A target in a process on another machine: drafter and tree are here, weights and cache are there."""
