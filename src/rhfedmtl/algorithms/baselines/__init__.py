"""Methods of other authors, and reference points, on the same tiers, prices and ledger."""
