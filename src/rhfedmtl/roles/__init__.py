"""Terminal, base station and cloud as state machines without I/O: engines carry their messages and decide nothing."""
