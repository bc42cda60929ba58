"""The strongest methods of others, on the same tiers, prices and ledger: to compare with."""
