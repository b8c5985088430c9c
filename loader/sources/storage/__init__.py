"""Where files are: on this machine or in object stores, listed once and read by spans.

This part imports only `loader/records/`.
"""
