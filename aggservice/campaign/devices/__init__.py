"""The devices of campaigns: one class per API and use, each on fleets and on real browsers."""
