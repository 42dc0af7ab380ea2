"""Readers of data sets in the formats their authors publish. No pickle is run, no archive chooses where it goes."""
