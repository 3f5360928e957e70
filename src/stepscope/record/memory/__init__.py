"""Memory of a profiled window: from tensors and allocator events to rows of memory/."""
