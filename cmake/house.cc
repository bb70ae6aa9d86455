// The precompiled headers are compiled with a target, and a target has a source.
