"""A decoder whose weights are shared out over several processes: the first leads, the others follow its plan."""
