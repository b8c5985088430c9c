"""How fast a loader is, where its time goes, and the one knob to turn next."""
