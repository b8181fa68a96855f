"""The parts of ``spark-bookkeeper demo``: its rows, its two writers, its steps and its proof."""
