"""The cloud process: journal, trainings, stations, operators."""
