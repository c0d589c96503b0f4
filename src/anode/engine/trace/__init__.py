"""From a function to a program: its operations on tensors are recorded once and translated."""
