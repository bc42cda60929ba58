"""The engine that keeps rows and dual variables on a graphics card."""
