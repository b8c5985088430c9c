"""Records of different lengths packed into rows of one length."""
