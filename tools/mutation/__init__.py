"""Are the tests sharp? Break an equation, one place at a time, and see whether a test fails (`make mutation`)."""
