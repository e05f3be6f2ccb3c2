"""How the demo guest's disk is made. Standard library only: it runs before any virtual environment exists."""
