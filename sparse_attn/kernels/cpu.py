"""Placeholder until the C++ rows are in."""


def refusal(call):
    return "not written yet"
