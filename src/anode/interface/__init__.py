"""The solving functions: ``anode.solve`` and torchdiffeq's ``odeint`` family."""
