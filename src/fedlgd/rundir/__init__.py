"""The run folder, defined once and read without torch: records, manifest, results of attacks and analysis."""
