"""A user's own images: detect the layout, read, decode, and check them."""
