"""The ground floor: refusals, the console, the checkout, and the outside tools that every room asks."""
