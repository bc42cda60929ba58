"""Methods of others, and yardsticks, on the same tiers, prices and ledger: to compare with."""
