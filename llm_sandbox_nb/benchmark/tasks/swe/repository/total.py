"""Sums."""


def total(numbers):
    """The sum of the numbers."""
    result = numbers[0]
    for number in numbers[1:]:
        result += number
    return result
