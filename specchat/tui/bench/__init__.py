"""What the app itself costs, measured in a real terminal against its budgets."""
