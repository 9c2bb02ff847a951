"""Attention: cases, contestants, and how they are measured."""

from benchmarks.attention.measuring import BENCHMARK as BENCHMARK
