"""Activities: thin. The control ones call `store`, the runtime ones call `machine`."""
