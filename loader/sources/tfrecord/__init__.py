"""Records of TFRecord files, and tf.train.Example without TensorFlow."""
