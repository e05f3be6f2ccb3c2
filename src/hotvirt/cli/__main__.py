"""`python -m hotvirt.cli`: the same as `hotvirt`, for processes that start each other."""

from .main import main

main()
