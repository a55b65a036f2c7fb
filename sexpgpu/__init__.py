"""Neural network experiments as S-expressions, planned before they run, trained on the device at hand."""

__version__ = "0.1.0"
