"""What the user holds: an explanation that shows, saves and compares itself."""
