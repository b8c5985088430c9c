"""`gristmill plan`: what a run would read of its storage, and whether that keeps up."""
