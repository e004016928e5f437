"""Protected Audience auctions and what they contribute."""
