"""Runs on disk: settings, results, checkpoints and progress, with everything that is needed to repeat a run."""
