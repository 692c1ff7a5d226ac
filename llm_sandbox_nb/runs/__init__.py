"""Operations on a run: solve, resume, rewind, fork, replay, compare."""
