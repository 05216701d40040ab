"""Models, and all the code that travels to the Hub with them."""

# finds operators of installed packages, and saves operators with their models
from .. import operators as operators
