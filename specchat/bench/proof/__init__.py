"""Proof that speculation changes nothing but the waiting."""
