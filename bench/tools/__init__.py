"""What benchmarks share: inputs, our side of each phase, measurement, tables, and the walk through the source."""
