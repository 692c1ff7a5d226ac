"""What a person does with a run: solve, resume, rewind, fork, replay, compare."""
