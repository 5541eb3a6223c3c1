"""What is declared: environments, sites, and the project that holds them."""
