"""The far side of the process boundary: owns torch."""
