"""The command line: turns words into objects, calls the library, prints what came out. One file a command."""
