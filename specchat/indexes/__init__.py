"""Data structures that several methods share; no models here."""
