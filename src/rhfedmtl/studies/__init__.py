"""Studies: methods × grid × seeds from a specification, and the tables and figures of the paper."""
