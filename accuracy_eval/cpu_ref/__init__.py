"""The reference: float64 and exact arithmetic on decoded codes. No I/O, no torch."""
