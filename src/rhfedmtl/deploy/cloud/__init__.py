"""The process of the cloud: journal, trainings, stations, operators."""
