"""Making virtual images: how they start, distribution matching at a site, gradient matching at the server."""
