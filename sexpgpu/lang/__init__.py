"""From text to an `Experiment`: elaboration of forms, tracing of objectives, the top level."""
