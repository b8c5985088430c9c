"""A batch as a person would look at it."""

from loader.command.peek.peek import Peek as Peek
from loader.command.peek.peek import peek as peek
