"""What the paper reports of the image half."""

TABLE1 = {
    "mnist": ("96.4 ± 0.5", "98.2 ± 0.1"),
    "cifar10": ("53.7 ± 0.2", "60.6 ± 0.4"),
    "svhn": ("81.0 ± 0.6", "83.5 ± 0.5"),
}
"""The paper's test accuracies in percent, of NODEs and ANODEs."""
