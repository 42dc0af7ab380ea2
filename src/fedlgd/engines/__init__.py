"""Engines only move messages between the two halves of a method."""
