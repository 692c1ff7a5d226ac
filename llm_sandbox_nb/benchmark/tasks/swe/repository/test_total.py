import unittest

from total import total


class Total(unittest.TestCase):
    def test_some(self):
        self.assertEqual(total([1, 2]), 3)
