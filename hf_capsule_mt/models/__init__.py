"""Models, and all the code that travels to the Hub with them."""
