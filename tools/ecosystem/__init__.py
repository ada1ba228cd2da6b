"""Models as people load them: adapters, quantised, wrapped, sharded; each compared with the plain model."""
