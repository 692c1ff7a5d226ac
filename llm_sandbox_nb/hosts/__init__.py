"""This package inside the programs of other projects."""
