"""Sites and their images: the built-in federation, a user's own arrays, and later whole suites."""
