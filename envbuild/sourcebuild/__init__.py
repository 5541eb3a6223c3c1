"""Building what no index gives as a wheel."""
