"""Passes from graph to graph: raise, stack, differentiate, simplify."""
