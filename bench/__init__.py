"""Speed and memory, as ratios inside one run."""
