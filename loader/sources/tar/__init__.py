"""Records of tar files, as WebDataset writes them."""
