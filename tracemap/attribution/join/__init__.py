"""Which site an event belongs to, as far as a run's header and the map tell it: buffers aligned, calls followed."""
