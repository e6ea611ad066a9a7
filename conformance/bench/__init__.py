"""Speed and cost of an engine's speculation, apart from whether it is exact.

Nothing here reaches a verdict, and no verdict depends on anything here.
"""
