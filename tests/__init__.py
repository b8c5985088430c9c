import os

# Albumentations asks a server for its newest release when it is imported.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
