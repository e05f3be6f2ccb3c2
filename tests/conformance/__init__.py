"""How a Kubernetes API behaves, one test a sentence.

Nothing here knows Hotvirt: what the real server does is right.
"""
