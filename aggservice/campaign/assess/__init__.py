"""Truth against estimate: per slice, per unit, per event, and where conversions were lost."""
