"""Live pages in a browser: runs, networks, and plans for a budget. The pages only show; they never change anything."""
