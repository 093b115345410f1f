"""The process boundary: what crosses it (events), who owns torch (host), who owns nothing heavy (client)."""
