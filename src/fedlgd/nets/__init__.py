"""The paper's two networks, and the door for a user's own."""
