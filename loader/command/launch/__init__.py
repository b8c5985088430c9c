"""`gristmill launch`: one command in several processes on this machine; `launch.py` is the way."""
