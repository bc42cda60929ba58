"""Policies: how many local steps and station rounds the next server iteration gets."""
